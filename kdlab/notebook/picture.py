"""A run as a picture (SVG) and tables (HTML): for saved notebooks and where no widget is."""

import html
import time
from collections.abc import Mapping

from kdlab.events.run_state import PANELS
from kdlab.notebook import live_state
from kdlab.notebook.watch import Watch
from kdlab.report import chart, check_table, page
from kdlab.report.chart import Panel
from kdlab.report.page import table
from kdlab.report.table import duration
from kdlab.report.timeline import timeline


def svg(watch: Watch) -> str:
    """All panels, one below the other."""
    panels = [
        Panel(
            panel,
            {name: list(c) for (p, name), c in watch.curves.items() if p == panel},
            {name: points for (p, name), points in watch.levels.items() if p == panel},
            across=PANELS[panel][1],
            unit=PANELS[panel][0],
        )
        for panel in watch.now.panels or ["loss"]
    ]
    return chart.svg(panels)


def together(watches: Mapping[str, Watch]) -> str:
    """Several runs in one picture, and a line on each."""
    panels = [
        Panel(
            panel,
            {
                f"{label} · {name}": list(curve)
                for label, watch in watches.items()
                for (p, name), curve in watch.curves.items()
                if p == panel
            },
            across=across,
            unit=unit,
        )
        for panel, (unit, across) in live_state.panels(watches.values()).items()
        if any(panel in watch.now.panels for watch in watches.values())
    ]
    rows = [
        (label, live_state.shown_state(watch), live_state.said(watch))
        for label, watch in watches.items()
    ]
    return page.image(chart.svg(panels)) + table(("run", "state", "where it stands"), rows)


def heading(watch: Watch) -> str:
    shown = live_state.shown_state(watch)
    facts = [watch.experiment, shown, live_state.said(watch) or "preparing"]
    return " · ".join(html.escape(fact) for fact in facts if fact)


def teachers(watch: Watch) -> str:
    """One row per teacher; empty without any."""
    if not watch.now.teachers.rows:
        return ""
    rows = [
        (t.name, t.state, t.device, f"{t.t_t:.0f}", t.resends,
         duration(watch.time - t.since))
        for t in watch.now.teachers.rows.values()
    ]  # fmt: skip
    head = ("teacher", "state", "device", "samples/s", "sent again", "for")
    return table(head, rows)


def devices(watch: Watch) -> str:
    """What each device of a pipeline did in the last steps of an epoch; empty without."""
    return page.image(timeline(watch.spans), "Gantt") if watch.spans else ""


def ticker(watch: Watch) -> str:
    """The newest events first."""
    newest = list(watch.ticker)[-8:][::-1]
    rows = [(time.strftime("%H:%M:%S", time.localtime(t)), line) for t, line in newest]
    return table(("time", "event"), rows) if rows else ""


def static(watch: Watch, run_id: str = "") -> str:
    """All of it as HTML that stays in a saved notebook."""
    verdict = live_state.verdict(watch, run_id)
    said = f"<div>{html.escape(verdict['text'])}</div>" if verdict else ""
    head, *rows = live_state.results(watch) or [[]]
    said += table(head, rows) if rows else ""
    image = page.image(svg(watch))
    checks = check_table.as_page(check_table.worst_first(watch.checks.values()))
    below = f"{checks}{devices(watch)}{teachers(watch)}{ticker(watch)}"
    return f"<div><b>{heading(watch)}</b></div>{said}{image}{below}"
