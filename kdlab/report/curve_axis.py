"""The axis that a curve of a run is drawn on: losses of different kinds never share one."""

from kdlab.config.load import flat
from kdlab.events.run_state import LOSS, PANELS
from kdlab.report.table import number


def curve_axis(panel: str, curve: str, source: str, loss: object) -> tuple[str, str]:
    """Title and unit, or settings of a loss; where either differs, so does the axis.

    Args:
        panel: its name in events/run_state.
        curve: its name there.
        source: of the soft labels of its training.
        loss: block of its spec, resolved; None where it is not known.
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
