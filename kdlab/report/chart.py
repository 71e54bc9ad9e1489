"""Curves as SVG for notebooks, saved or live, pages and MLflow.

Axes show round numbers within the measured range only. Text is grey, which is legible on light
and on dark pages; all text is escaped.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, TALL = 420, 190  # pixels of a panel without legend
COLOURS = (
    *("#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8", "#b98a2f", "#5f7385", "#c4508f"),
    "#1d9a9d",
)  # between the live view's colours for light and for dark pages
_LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = 52, 12, 8, 32, 16
_END = 'text-anchor="end"'
_MIDDLE = 'text-anchor="middle"'
_TICK_Y, _TICK_X = 30, 70  # least distance of an axis's numbers in pixels
_DOTS = 12  # most points that are also drawn as dots
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one x axis.

    curves: points by name of the curve; names that are equal before ` · ` share a colour.
    levels: by name, points from which a bound has this value.
    """

    title: str
    curves: Mapping[str, Points]
    levels: Mapping[str, Points] = field(default_factory=dict)
    across: str = ""  # label of the x axis, with unit
    unit: str = ""  # unit of y
    bars: bool = False  # stacked bars instead of lines; x is their left end


def ticks(low: float, high: float, most: float) -> list[float]:
    """Return about `most` ticks within the limits, at 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    least = span / max(1.0, most)
    power = 10 ** math.floor(math.log10(least))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-6)
    count = math.floor((high - first * step) / step + 1e-6)
    return [float(f"{(first + k) * step:.12g}") for k in range(count + 1)]


def drawings(panels: Sequence[Panel]) -> list[str]:
    """Draw each panel as an SVG without title; a name has the same colour in all."""
    return [
        svg_head(WIDTH, tall) + drawn + "</svg>"
        for drawn, tall in _draw_panels(panels, titled=False)
    ]


def svg(panels: Sequence[Panel]) -> str:
    """Draw all panels in one SVG with two columns."""
    drawn = _draw_panels(panels, titled=True)
    parts, top = list[str](), 0
    for first in range(0, len(drawn), 2):
        for place, (content, _) in enumerate(drawn[first : first + 2]):
            parts.append(
                f'<g transform="translate({place * (WIDTH + _LINE)} {top})">{content}</g>'
            )
        top += max(tall for _, tall in drawn[first : first + 2])
    wide = WIDTH if len(panels) < 2 else 2 * WIDTH + _LINE
    return "".join([svg_head(wide, top), *parts, "</svg>"])


def svg_head(wide: int, tall: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" '
        f'width="{wide}" height="{tall}" style="max-width:100%;height:auto" '
        'font-family="system-ui, sans-serif" font-size="11"><style>text{fill:#7b8490}</style>'
    )


def svg_text(x: float, y: str, words: str, more: str = "") -> str:
    """Return escaped text at a position; `more` are attributes."""
    return f'<text x="{x}" y="{y}"{more and f" {more}"}>{html.escape(words)}</text>'


def _draw_panels(panels: Sequence[Panel], *, titled: bool) -> list[tuple[str, int]]:
    """Draw each panel; returns its SVG parts and height."""
    groups = dict.fromkeys(_group(name) for panel in panels for name in panel.curves)
    colours = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(groups)}
    drawn = []
    for panel in panels:
        names = list(dict.fromkeys(map(_group, panel.curves)))
        named = len(names) == 1 and panel.title.startswith(names[0])
        keys = {} if named else {name: colours[name] for name in names}
        title, parts = f"{panel.title}, {panel.unit}" if panel.unit else panel.title, ""
        if titled:
            parts = svg_text(0, "13", title, 'font-weight="bold"')
        legend, top = svg_keys(keys, _LINE * titled)
        parts += legend + "".join(_Drawing(panel, colours, top).parts())
        drawn.append((parts, top + TALL))
    return drawn


def svg_keys(colours: Mapping[str, str], top: int, room: int = WIDTH) -> tuple[str, int]:
    """Draw a legend; returns its SVG parts and its bottom in pixels."""
    parts, at = "", 0.0
    for name, colour in colours.items():
        wide = 6.2 * len(name) + 26  # approximate width of mark, name and gap
        if not at or at + wide > room:
            at, top = 0.0, top + _LINE
        place = f'x="{at:.0f}" y="{top - 12}"'
        parts += f'<rect {place} width="10" height="10" rx="2" fill="{colour}"/>'
        parts += svg_text(round(at) + 15, f"{top - 3}", name)
        at += wide
    return parts, top


class _Drawing:
    """Draws one panel `top` pixels from above."""

    def __init__(self, panel: Panel, colours: Mapping[str, str], top: float) -> None:
        self.panel, self.colours, self.top = panel, colours, top
        self.curves = {
            name: list(points) for name, points in panel.curves.items() if points
        }
        drawn = [*self.curves.values(), *panel.levels.values()]
        self.xs = [x for points in self.curves.values() for x, _ in points]
        self.ys = [y for points in drawn for _, y in points if math.isfinite(y)]
        if panel.bars:
            each = zip(*self.curves.values(), strict=True)
            self.xs.append(2 * self.xs[-1] - self.xs[-2])
            self.ys = [0.0, *(sum(y for _, y in points) for points in each)]
        self.wide, self.tall = WIDTH - _LEFT - _RIGHT, TALL - _TOP - _BOTTOM

    def parts(self) -> Iterable[str]:
        if not self.xs or not self.ys:
            yield svg_text(_LEFT, f"{self.top + 60}", "nothing yet")
            return
        self.x0, self.x1 = min(self.xs), max(*self.xs, min(self.xs) + 1e-9)
        self.y0, self.y1 = _padded(min(self.ys), max(self.ys))
        yield from self._axes()
        for name, points in self.panel.levels.items():
            yield from self._level(name, points)
        for name, points in self.curves.items():
            yield from self._curve(name, points) if not self.panel.bars else ()
        yield from self._bars() if self.panel.bars else ()

    def _place(self, x: float, y: float) -> tuple[float, float]:
        share = (min(max(y, self.y0), self.y1) - self.y0) / (self.y1 - self.y0)
        across = min(max((x - self.x0) / (self.x1 - self.x0), 0.0), 1.0)
        return _LEFT + self.wide * across, self.top + _TOP + self.tall * (1 - share)

    def _axes(self) -> Iterable[str]:
        right, low = WIDTH - _RIGHT, self.top + _TOP + self.tall
        for value in ticks(self.y0, self.y1, self.tall / _TICK_Y):
            _, y = self._place(self.x0, value)
            yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#888" stroke-opacity="0.3"/>'
            yield svg_text(_LEFT - 6, f"{y + 4:.1f}", f"{value:,.6g}", _END)
        for value in ticks(self.x0, self.x1, self.wide / _TICK_X):
            x, _ = self._place(value, self.y0)
            yield f'<path d="M{x:.1f} {low}v3" stroke="#888"/>'
            how = _END if x > right - 15 else _MIDDLE  # else the last number is cut off
            yield svg_text(round(x, 1), f"{low + 14}", f"{value:,.8g}", how)
        yield svg_text(_LEFT + self.wide / 2, f"{low + 27}", self.panel.across, _MIDDLE)

    def _level(self, name: str, points: Points) -> Iterable[str]:
        ends = [*(x for x, _ in points[1:]), self.x1]
        (x, y), *_ = places = [self._place(*point) for point in points]
        drawn = f"M{x:.1f} {y:.1f}" + "".join(
            f"V{y:.1f}H{self._place(end, 0)[0]:.1f}"
            for (_, y), end in zip(places, ends, strict=True)
        )
        yield f'<path fill="none" stroke="#888" stroke-dasharray="5 4" d="{drawn}"/>'
        label = f"{name} {points[-1][1]:.4g}"
        yield svg_text(WIDTH - _RIGHT, f"{places[-1][1] - 3:.1f}", label, _END)

    def _curve(self, name: str, points: Points) -> Iterable[str]:
        colour = self.colours[_group(name)]
        places = [self._place(*p) for p in points if math.isfinite(p[1])]
        for x, y in places if len(places) <= _DOTS else ():
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield (
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{drawn}">'
            f"<title>{html.escape(name)}</title></polyline>"
        )

    def _bars(self) -> Iterable[str]:
        below = dict.fromkeys(self.xs, 0.0)
        for name, points in self.curves.items():
            for x, y in points:
                left, low = self._place(x, below[x])
                _, high = self._place(x, below[x] + y)
                below[x] += y
                wide = self.wide / len(points) - 2
                yield (
                    f'<rect x="{left + 1:.1f}" y="{high:.1f}" width="{wide:.1f}" '
                    f'height="{low - high:.1f}" fill="{self.colours[name]}">'
                    f"<title>{y:g} {html.escape(name)} from {x:g} on</title></rect>"
                )


def _group(name: str) -> str:
    return name.split(" · ", 1)[0]


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return axis limits with a margin; values from 0 up get no limit below 0."""
    margin = 0.05 * (high - low) or max(1e-9, 0.05 * abs(high))
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin
