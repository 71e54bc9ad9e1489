"""A run as a picture (SVG) and tables (HTML): for saved notebooks and where no widget is."""

import html
import time

from kdlab.notebook.watch import Watch
from kdlab.report import page
from kdlab.report.page import Panel, table
from kdlab.report.timeline import timeline


def svg(watch: Watch) -> str:
    """All panels, one below the other."""
    panels = [
        Panel(
            panel,
            {name: list(c) for (p, name), c in watch.curves.items() if p == panel},
            watch.lines.get(panel, {}),
        )
        for panel in watch.panels or ["loss"]
    ]
    return page.svg(panels)


def heading(watch: Watch) -> str:
    share = f"step {watch.step} of {watch.of_steps}" if watch.of_steps else "preparing"
    state = "paused" if watch.paused and watch.state == "running" else watch.state
    facts = [watch.experiment, watch.member, state, f"epoch {watch.epoch + 1}", share]
    if watch.rate:
        facts.append(f"{watch.rate:.0f} samples/s")
    return " · ".join(html.escape(fact) for fact in facts if fact)


def teachers(watch: Watch) -> str:
    """One row per teacher; empty without any."""
    if not watch.teachers:
        return ""
    rows = [
        (t.name, t.state, t.device, f"{t.t_t:.0f}", t.resends, _ago(watch.time - t.since))
        for t in watch.teachers.values()
    ]
    head = ("teacher", "state", "device", "samples/s", "sent again", "since")
    return table(head, rows)


def devices(watch: Watch) -> str:
    """What each device of a pipeline did in the last steps of an epoch; empty without."""
    return page.image(timeline(watch.spans), "Gantt") if watch.spans else ""


def ticker(watch: Watch) -> str:
    """The newest events first."""
    newest = list(watch.ticker)[-8:][::-1]
    rows = [(time.strftime("%H:%M:%S", time.localtime(t)), line) for t, line in newest]
    return table(("time", "event"), rows) if rows else ""


def static(watch: Watch) -> str:
    """All of it as HTML that stays in a saved notebook."""
    image = page.image(svg(watch))
    below = f"{devices(watch)}{teachers(watch)}{ticker(watch)}"
    return f"<div><b>{heading(watch)}</b></div>{image}{below}"


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min"
