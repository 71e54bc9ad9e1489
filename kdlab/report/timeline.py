"""What devices did when, as SVG: for notebooks. Files are written by kdlab/report/trace.py."""

import html
from collections.abc import Sequence

from kdlab.report.chart import WIDTH, svg_head

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
_LEFT, _HIGH = 72, 26
_BESIDE = 6  # names of parts in a line


def timeline(spans: Sequence[BarRow]) -> str:
    """A row for each device, and its share of time by part beside the colours."""
    devices = sorted({device for device, *_ in spans})
    ends = max((end for *_, end in spans), default=0.0) or 1e-9
    used = [name for name in COLOURS if any(s[1] == name for s in spans)]
    height = _HIGH * (len(devices) + 1) + 14 * (1 + len(used) // _BESIDE)
    parts = [svg_head(height)]
    for row, device in enumerate(devices):
        top = row * _HIGH
        parts.append(f'<text x="0" y="{top + 17}">device {device}</text>')
        for _, part, step, begin, end in (s for s in spans if s[0] == device):
            x, wide = _x(begin, ends), _x(end, ends) - _x(begin, ends)
            said = f"{part}, step {step}: {1e3 * (end - begin):.2f} ms"
            parts.append(
                f'<rect x="{x:.1f}" y="{top + 3}" width="{max(wide, 0.3):.1f}" '
                f'height="{_HIGH - 6}" fill="{COLOURS.get(part, "#888888")}">'
                f"<title>{html.escape(said)}</title></rect>"
            )
    top = _HIGH * len(devices)
    parts.append(
        f'<text x="{WIDTH}" y="{top + 12}" text-anchor="end">{1e3 * ends:.1f} ms</text>'
    )
    for number, part in enumerate(used):
        busy = sum(end - begin for _, p, _, begin, end in spans if p == part)
        said = f"{part} {busy / (ends * max(1, len(devices))):.0%}"
        x = _LEFT + (WIDTH - _LEFT) / _BESIDE * (number % _BESIDE)
        y = top + 20 + 14 * (number // _BESIDE)
        parts.append(
            f'<rect x="{x:.0f}" y="{y}" width="9" height="9" fill="{COLOURS[part]}"/>'
            f'<text x="{x + 13:.0f}" y="{y + 8}">{html.escape(said)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _x(seconds: float, ends: float) -> float:
    return _LEFT + (WIDTH - _LEFT) * seconds / ends
