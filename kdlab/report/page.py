"""Curves (SVG) and tables (HTML) that read everywhere: notebooks, saved or live, and MLflow.

Everything that comes from a config or a cluster is escaped. Styles are inline, which untrusted
notebooks keep; text is grey, which reads on light and on dark pages.
"""

import base64
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH, PANEL = 720, 130
NARROW = 'style="max-width:100%;height:auto"'  # than that: the whole of it, smaller
_LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = 62, 12, 20, 20, 16
COLOURS = ("#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8", "#b98a2f", "#5f7385", "#c4508f")
_END = 'text-anchor="end"'
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one x.

    curves: points by the name of the curve; those of one name before ` · ` share a colour.
    """

    title: str
    curves: Mapping[str, Points]
    lines: Mapping[str, float] = field(default_factory=dict)  # values drawn across, by name
    across: str = ""  # what x is, with its unit


def svg(panels: Sequence[Panel]) -> str:
    """One panel below the other, with the names of the curves above where they fit there."""
    groups = list(dict.fromkeys(_group(n) for panel in panels for n in panel.curves))
    rows = _rows(groups)
    above = len(rows) > 1 or any(
        _width(panel.title) + sum(map(_width, rows[0] if rows else ())) > WIDTH - _LEFT
        for panel in panels
    )
    head = _LINE * len(rows) if above else 0
    height = head + PANEL * len(panels) + 4
    parts = [svg_head(height)]
    if above:
        for number, row in enumerate(rows):
            parts += _legend(row, groups, number * _LINE)
    for number, panel in enumerate(panels):
        top = head + number * PANEL
        parts += _drawn(panel, groups, top)
        if not above:
            own = [g for g in groups if any(_group(n) == g for n in panel.curves)]
            parts += _legend(own, groups, top)
    return "".join([*parts, "</svg>"])


def svg_head(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" {NARROW} font-family="sans-serif" '
        'font-size="11"><style>text{fill:#888}</style>'
    )


def svg_text(x: float, y: str, words: str, more: str = "") -> str:
    """Somebody's words at a place; `more` are attributes."""
    return f'<text x="{x}" y="{y}"{more and f" {more}"}>{html.escape(words)}</text>'


def _width(name: str) -> float:
    """Width of a word in a picture with the gap after it; pixels, about."""
    return 6.2 * len(name) + 14


def _rows(groups: Sequence[str]) -> list[list[str]]:
    """Names that fit beside each other."""
    rows: list[list[str]] = []
    for name in groups:
        if not rows or sum(map(_width, [*rows[-1], name])) > WIDTH - _LEFT:
            rows.append([])
        rows[-1].append(name)
    return rows


def _drawn(panel: Panel, groups: Sequence[str], top: float) -> Iterable[str]:
    curves = {name: list(points) for name, points in panel.curves.items() if len(points)}
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points if math.isfinite(y)]
    ys += panel.lines.values()
    yield svg_text(_LEFT, f"{top + 13}", panel.title, 'font-weight="bold"')
    if not xs or not ys:
        yield svg_text(_LEFT, f"{top + 60}", "nothing yet")
        return
    x0, x1 = min(xs), max(*xs, min(xs) + 1e-9)
    y0, y1 = _room(min(ys), max(ys))
    inner, tall = WIDTH - _LEFT - _RIGHT, PANEL - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        share = (min(max(y, y0), y1) - y0) / (y1 - y0)
        return _LEFT + inner * (x - x0) / (x1 - x0), top + _TOP + tall * (1 - share)

    def across(y: float, style: str) -> str:
        ends = f'x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        return f'<line {ends} stroke="#888" {style}/>'

    for value in (y0, y1):
        _, y = at(x0, value)
        yield across(y, 'stroke-opacity="0.3"')
        yield svg_text(_LEFT - 6, f"{y + 4:.1f}", f"{value:.4g}", _END)
    for name, value in panel.lines.items():
        _, y = at(x0, value)
        yield across(y, 'stroke-dasharray="5 4"')
        yield svg_text(WIDTH - _RIGHT, f"{y - 3:.1f}", f"{name} {value:.4g}", _END)
    for name, points in curves.items():
        colour = COLOURS[groups.index(_group(name)) % len(COLOURS)]
        places = [at(*p) for p in points if math.isfinite(p[1])]
        if len(places) == 1:  # a line of one point would not be seen
            (x, y) = places[0]
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield (
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{drawn}">'
            f"<title>{html.escape(name)}</title></polyline>"
        )
    below = f"{top + PANEL - 5}"
    yield svg_text(_LEFT, below, f"{x0:.4g}")
    yield svg_text(_LEFT + inner / 2, below, panel.across, 'text-anchor="middle"')
    yield svg_text(WIDTH - _RIGHT, below, f"{x1:.6g}", _END)


def _group(name: str) -> str:
    return name.split(" · ", 1)[0]


def _legend(names: Sequence[str], groups: Sequence[str], top: float) -> Iterable[str]:
    """From the right, each as wide as its name."""
    at = float(WIDTH - _RIGHT)
    for name in reversed(names):
        colour = COLOURS[groups.index(name) % len(COLOURS)]
        style = f'{_END} style="fill:{colour}"'
        yield svg_text(round(at), f"{top + 13}", name, style)
        at -= _width(name)


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


class Rows(list[dict[str, Any]]):
    """Rows of one shape: a list in code, a table in a notebook."""

    def _repr_html_(self) -> str:
        return table(list(self[0]), [list(row.values()) for row in self]) if self else ""


def image(drawing: str, alt: str = "curves") -> str:
    """An SVG as an <img>, which saved notebooks and GitHub show."""
    encoded = base64.b64encode(drawing.encode()).decode()
    source = f"data:image/svg+xml;base64,{encoded}"
    return f'<img alt="{html.escape(alt)}" {NARROW} src="{source}"/>'


def png(path: Path, alt: str) -> str:
    """A picture as it is, inside the page."""
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{encoded}"/>'


def markdown(text: str) -> str:
    """Words of a config as they are, whatever Markdown or HTML would make of them."""
    return re.sub(r"([\\`*_{}\[\]()#+!<>|&~])", r"\\\1", " ".join(text.split()))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells as they are: what is somebody's words goes through `markdown` before."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def whole(title: str, body: str) -> str:
    """A page of its own."""
    return (
        '<!doctype html><html><head><meta charset="utf-8"><meta name="color-scheme" '
        f'content="light dark"><title>{html.escape(title)}</title></head>'
        f'<body style="font-family:sans-serif;max-width:60em">{body}</body></html>'
    )
