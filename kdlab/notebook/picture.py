"""A run as a picture (SVG) and tables (HTML): for saved notebooks and where no widget is.

Everything that comes from a config or a cluster is escaped. Colours are those of the page
(currentColor), so that it reads in dark mode too.
"""

import base64
import html
import math
import time
from collections.abc import Iterable, Sequence

from kdlab.notebook.watch import Watch

WIDTH, PANEL = 720, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 20, 20
COLOURS = ("#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8", "#b98a2f", "#5f7385", "#c4508f")


def svg(watch: Watch) -> str:
    """One panel below the other."""
    panels = watch.panels or ["loss"]
    height = PANEL * len(panels) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
        "<style>text{fill:#888}</style>",
    ]
    for number, panel in enumerate(panels):
        parts += _panel(watch, panel, number * PANEL)
    return "".join([*parts, "</svg>"])


def _panel(watch: Watch, panel: str, top: float) -> Iterable[str]:
    curves = {n: list(c) for (p, n), c in watch.curves.items() if p == panel and len(c)}
    lines = watch.lines.get(panel, {})
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points if math.isfinite(y)]
    ys += lines.values()
    yield f'<text x="{_LEFT}" y="{top + 13}" font-weight="bold">{html.escape(panel)}</text>'
    if not xs or not ys:
        yield f'<text x="{_LEFT}" y="{top + 60}">nothing yet</text>'
        return
    x0, x1 = min(xs), max(*xs, min(xs) + 1e-9)
    y0, y1 = _room(min(ys), max(ys))
    inner, tall = WIDTH - _LEFT - _RIGHT, PANEL - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        share = (min(max(y, y0), y1) - y0) / (y1 - y0)
        return _LEFT + inner * (x - x0) / (x1 - x0), top + _TOP + tall * (1 - share)

    for value in (y0, y1):
        _, y = at(x0, value)
        yield (
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#888" stroke-opacity="0.3"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    for name, value in lines.items():
        _, y = at(x0, value)
        yield (
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#888" stroke-dasharray="5 4"/>'
            f'<text x="{WIDTH - _RIGHT}" y="{y - 3:.1f}" text-anchor="end">'
            f"{html.escape(name)} {value:.4g}</text>"
        )
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in points if math.isfinite(p[1]))
        )
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{drawn}"/>'
        yield (
            f'<text x="{_LEFT + 200 + 130 * number}" y="{top + 13}" style="fill:{colour}">'
            f"{html.escape(name)}</text>"
        )
    yield f'<text x="{_LEFT}" y="{top + PANEL - 5}">{x0:.0f}</text>'
    yield (
        f'<text x="{WIDTH - _RIGHT}" y="{top + PANEL - 5}" text-anchor="end">{x1:.0f}</text>'
    )


def _room(low: float, high: float) -> tuple[float, float]:
    """A little more than the values need, and never nothing."""
    margin = 0.05 * (high - low) or max(1e-9, 0.05 * abs(high))
    return low - margin, high + margin


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """With inline styles: untrusted notebooks keep them."""
    cell = 'style="text-align:left;padding:1px 10px 1px 0;font-size:12px"'
    tops = "".join(f"<th {cell}>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td {cell}>{html.escape(str(v))}</td>" for v in row) + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse"><tr>{tops}</tr>{body}</table>'


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


def ticker(watch: Watch, most: int = 8) -> str:
    """The newest events first."""
    newest = list(watch.ticker)[-most:][::-1]
    rows = [(time.strftime("%H:%M:%S", time.localtime(t)), line) for t, line in newest]
    return table(("time", "event"), rows) if rows else ""


def static(watch: Watch) -> str:
    """All of it as HTML that stays in a saved notebook."""
    encoded = base64.b64encode(svg(watch).encode()).decode()
    image = f'<img alt="curves" src="data:image/svg+xml;base64,{encoded}"/>'
    return f"<div><b>{heading(watch)}</b></div>{image}{teachers(watch)}{ticker(watch)}"


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min"
