"""A run as static cards with SVG charts and tables, for saved notebooks."""

import html
import time
from collections.abc import Mapping

from kdlab.notebook import live_state
from kdlab.notebook.watch import Watch
from kdlab.report import check_table, page
from kdlab.report.chart import Panel, Points
from kdlab.report.curve_axis import curve_axis
from kdlab.report.page import Card, CardPage, table
from kdlab.report.table import duration
from kdlab.report.timeline import timeline


def panels(watches: Mapping[str, Watch]) -> list[Panel]:
    """Return panels with curves of runs, by label; losses of different kinds are separate."""
    axes: dict[tuple[str, str, str, str], dict[str, Points]] = {}
    for panel, (_, across) in live_state.panels(watches.values()).items():
        for label, watch in watches.items():
            loss = watch.started.spec.get("loss") if watch.started else None
            for (curve_panel, name), curve in watch.curves.items():
                if curve_panel == panel:
                    axis = curve_axis(panel, name, watch.now.source, loss)
                    curve_name = f"{label} · {name}" if label else name
                    axes.setdefault((panel, across, *axis), {})[curve_name] = list(curve)
    single = [*watches.values()] if len(watches) == 1 else []
    levels = [level for watch in single for level in watch.levels.items()]
    return [
        Panel(title, curves, {n: line for (p, n), line in levels if p == at}, across, unit)
        for (at, across, title, unit), curves in axes.items()
    ]


def several_runs(watches: Mapping[str, Watch]) -> str:
    """Return charts of several runs, and a line on each, as HTML."""
    rows = [
        (label, live_state.shown_state(watch), live_state.progress_line(watch))
        for label, watch in watches.items()
    ]
    runs = Card("", table(("run", "state", "progress"), rows))
    return page.shown(runs, *page.charts(panels(watches)))


def _teachers(watch: Watch) -> str:
    rows = [
        (t.name, t.state, t.device, f"{t.t_t:.0f}", t.resends,
         duration(watch.time - t.since))
        for t in watch.now.teachers.rows.values()
    ]  # fmt: skip
    head = ("teacher", "state", "device", "samples/s", "sent again", "for")
    return table(head, rows) if rows else ""


def _ticker(watch: Watch) -> str:
    """Return the newest events first, as HTML."""
    lines = "".join(
        f"<li><time>{time.strftime('%H:%M:%S', time.localtime(at))}</time>"
        f"<span>{html.escape(line)}</span></li>"
        for at, line in [*watch.ticker][-8:][::-1]
    )
    return f'<ol class="kd-list">{lines}</ol>' if lines else ""


def static(watch: Watch, run_id: str = "") -> str:
    """Return a run's view as HTML for a saved notebook."""
    verdict = live_state.verdict(watch, run_id)
    alerts = [(verdict["tone"], verdict["text"])] if verdict else []
    head, *rows = live_state.results(watch) or [[]]
    curves = page.charts(panels({"": watch}))
    parts = {
        "Devices, latest steps": page.image(timeline(watch.spans), "Gantt")
        if watch.spans
        else "",
        "Teachers": _teachers(watch),
        "Events": _ticker(watch),
    }
    cards = [
        *([Card("Test results", table(head, rows))] if rows else []),
        *(curves or [Card("", page.lines([live_state.waiting(watch)]))]),
        *check_table.cards(check_table.worst_first(watch.checks.values())),
        *(Card(title, body) for title, body in parts.items() if body),
    ]
    detail, state = live_state.progress_line(watch), live_state.shown_state(watch)
    return CardPage(watch.experiment or run_id, cards, alerts, detail, state).html()
