"""Curves as SVG that reads everywhere: notebooks, saved or live, pages and MLflow.

Axes show round numbers within what was measured, and nothing beyond it. Text is grey, which
reads on light and on dark pages; all words are escaped.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, PANEL = 720, 150
NARROW = 'style="max-width:100%;height:auto"'  # than that: the whole of it, smaller
COLOURS = ("#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8", "#b98a2f", "#5f7385", "#c4508f")
_LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = 62, 12, 22, 32, 16
_END = 'text-anchor="end"'
_MIDDLE = 'text-anchor="middle"'
_TICK_Y, _TICK_X = 30, 90  # pixels at least between numbers of an axis
_DOTS = 12  # points up to which each is seen as such
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one x.

    curves: points by the name of the curve; those of one name before ` · ` share a colour.
    levels: by name, points from which on a bound has this value.
    """

    title: str
    curves: Mapping[str, Points]
    levels: Mapping[str, Points] = field(default_factory=dict)
    across: str = ""  # what x is, with its unit
    unit: str = ""  # of y


def ticks(low: float, high: float, most: float) -> list[float]:
    """1, 2 or 5 times a power of ten, within the limits; `most` of them, about."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    least = span / max(1.0, most)
    power = 10 ** math.floor(math.log10(least))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-6)
    count = math.floor((high - first * step) / step + 1e-6)
    return [float(f"{(first + k) * step:.12g}") for k in range(count + 1)]


def svg(panels: Sequence[Panel]) -> str:
    """One panel below the other, with the names of the curves above where they fit there."""
    groups = list(dict.fromkeys(_group(n) for panel in panels for n in panel.curves))
    rows = _rows(groups)
    above = len(rows) > 1 or any(
        _width(_titled(panel)) + sum(map(_width, rows[0] if rows else ())) > WIDTH - _LEFT
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
        parts += _Drawing(panel, groups, top).parts()
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


def _titled(panel: Panel) -> str:
    return f"{panel.title}, {panel.unit}" if panel.unit else panel.title


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


class _Drawing:
    """One panel at its place."""

    def __init__(self, panel: Panel, groups: Sequence[str], top: float) -> None:
        self.panel, self.groups, self.top = panel, groups, top
        self.curves = {
            name: list(points) for name, points in panel.curves.items() if points
        }
        self.xs = [x for points in self.curves.values() for x, _ in points]
        ys = [y for points in self.curves.values() for _, y in points if math.isfinite(y)]
        self.ys = [*ys, *(y for points in panel.levels.values() for _, y in points)]
        self.wide, self.tall = WIDTH - _LEFT - _RIGHT, PANEL - _TOP - _BOTTOM

    def parts(self) -> Iterable[str]:
        title = svg_text(
            _LEFT, f"{self.top + 13}", _titled(self.panel), 'font-weight="bold"'
        )
        yield title
        if not self.xs or not self.ys:
            yield svg_text(_LEFT, f"{self.top + 60}", "nothing yet")
            return
        self.x0, self.x1 = min(self.xs), max(*self.xs, min(self.xs) + 1e-9)
        self.y0, self.y1 = _room(min(self.ys), max(self.ys))
        yield from self._axes()
        for name, points in self.panel.levels.items():
            yield from self._level(name, points)
        for name, points in self.curves.items():
            yield from self._curve(name, points)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        share = (min(max(y, self.y0), self.y1) - self.y0) / (self.y1 - self.y0)
        across = min(max((x - self.x0) / (self.x1 - self.x0), 0.0), 1.0)
        return _LEFT + self.wide * across, self.top + _TOP + self.tall * (1 - share)

    def _axes(self) -> Iterable[str]:
        for value in ticks(self.y0, self.y1, self.tall / _TICK_Y):
            _, y = self._at(self.x0, value)
            ends = f'x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line {ends} stroke="#888" stroke-opacity="0.3"/>'
            yield svg_text(_LEFT - 6, f"{y + 4:.1f}", f"{value:,.6g}", _END)
        low = self.top + _TOP + self.tall
        for value in ticks(self.x0, self.x1, self.wide / _TICK_X):
            x, _ = self._at(value, self.y0)
            ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{low + 3:.1f}"'
            yield f'<line {ends} stroke="#888"/>'
            # The last number would be cut off by the edge.
            how = _END if x > WIDTH - _RIGHT - 15 else _MIDDLE
            yield svg_text(round(x, 1), f"{low + 14:.1f}", f"{value:,.8g}", how)
        if self.panel.across:
            place = _LEFT + self.wide / 2
            yield svg_text(place, f"{low + 27:.1f}", self.panel.across, _MIDDLE)

    def _level(self, name: str, points: Points) -> Iterable[str]:
        ends = [*(x for x, _ in points[1:]), self.x1]
        steps = [
            place
            for (x, y), end in zip(points, ends, strict=True)
            for place in (self._at(x, y), self._at(end, y))
        ]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in steps)
        yield f'<polyline fill="none" stroke="#888" stroke-dasharray="5 4" points="{drawn}"/>'
        y, said = steps[-1][1] - 3, f"{name} {points[-1][1]:.4g}"
        yield svg_text(WIDTH - _RIGHT, f"{y:.1f}", said, _END)

    def _curve(self, name: str, points: Points) -> Iterable[str]:
        colour = COLOURS[self.groups.index(_group(name)) % len(COLOURS)]
        places = [self._at(*p) for p in points if math.isfinite(p[1])]
        for x, y in places if len(places) <= _DOTS else ():
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield (
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{drawn}">'
            f"<title>{html.escape(name)}</title></polyline>"
        )


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
    """A little more than the values need, and never nothing; no axis of counts below 0."""
    margin = 0.05 * (high - low) or max(1e-9, 0.05 * abs(high))
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin
