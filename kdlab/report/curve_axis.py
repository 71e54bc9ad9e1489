"""Axes for curves: losses of different kinds never share one."""

from kdlab.config.load import flat
from kdlab.events.run_state import LOSS, PANELS
from kdlab.report.table import number


def curve_axis(panel: str, curve: str, source: str, loss: object) -> tuple[str, str]:
    """Return title and unit (or a loss's settings); curves with both equal share an axis.

    Args:
        panel: name of the panel in events/run_state.
        curve: name of the curve there.
        source: source of soft labels.
        loss: resolved `loss` of the spec; None where it is unknown.
    """
    if panel != LOSS or curve.startswith("worker"):
        return panel, PANELS[panel][0]
    if curve != LOSS:
        return curve, ""
    if source == "none":
        return "loss on labels", ""
    settings = dict(flat(loss or {}))
    kind = str(settings.pop("type", "")).rpartition("/")[2]
    words = ", ".join(f"{key} {number(value)}" for key, value in settings.items() if value)
    return (f"loss, {kind}" if kind else LOSS), words
