"""Gantt chart of devices as SVG, for notebooks and run folders."""

import html
from collections.abc import Sequence

from kdlab.report.chart import svg_head, svg_keys, svg_text

BarRow = tuple[int, str, int, float, float]  # device, part, step, begin and end in seconds

COLOURS: dict[str, str] = {
    "load": "#8c8c8c",
    "receive": "#c7b8e0",
    "teacher": "#e08a3c",
    "send": "#9c7fd0",
    "student": "#3b7dd8",
    "backward": "#1d4f91",
    "all_reduce": "#d05a8c",
    "barrier": "#d8d8d8",
    "update": "#3fa66b",
    "idle": "#ffffff",
}
_WIDTH, _LEFT, _HIGH = 720, 72, 26


def timeline(spans: Sequence[BarRow]) -> str:
    """Draw a row for each device, with a legend of parts and their shares of time."""
    devices = sorted({device for device, *_ in spans})
    ends = max((end for *_, end in spans), default=0.0) or 1e-9
    used = [name for name in COLOURS if any(s[1] == name for s in spans)]
    total = ends * max(1, len(devices))
    busy = {part: sum(s[4] - s[3] for s in spans if s[1] == part) / total for part in used}
    keys = {f"{part} {share:.0%}": COLOURS[part] for part, share in busy.items()}
    legend, height = svg_keys(keys, _HIGH * len(devices) + 16, _WIDTH)
    parts = [svg_head(_WIDTH, height), legend]
    for row, device in enumerate(devices):
        top = row * _HIGH
        parts.append(f'<text x="0" y="{top + 17}">device {device}</text>')
        for _, part, step, begin, end in (s for s in spans if s[0] == device):
            x, wide = _x(begin, ends), _x(end, ends) - _x(begin, ends)
            label = f"{part}, step {step}: {1e3 * (end - begin):.2f} ms"
            parts.append(
                f'<rect x="{x:.1f}" y="{top + 3}" width="{max(wide, 0.3):.1f}" '
                f'height="{_HIGH - 6}" fill="{COLOURS.get(part, "#888888")}">'
                f"<title>{html.escape(label)}</title></rect>"
            )
    bottom, duration = _HIGH * len(devices) + 12, f"{1e3 * ends:.1f} ms"
    parts.append(svg_text(_WIDTH, f"{bottom}", duration, 'text-anchor="end"'))
    return "".join([*parts, "</svg>"])


def _x(seconds: float, ends: float) -> float:
    return _LEFT + (_WIDTH - _LEFT) * seconds / ends
