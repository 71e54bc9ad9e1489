"""Timelines of devices: Chrome trace, and time by part (Fig. 2 of Pipe-BD)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kdlab.papers.pipe_bd.relay import Span, TimePart
from kdlab.report.timeline import COLOURS


def chrome_trace(spans: Sequence[Span]) -> dict[str, object]:
    """Return a trace for chrome://tracing or Perfetto, in microseconds from the first span."""
    origin = min((span.begin for span in spans), default=0.0)
    devices = sorted({span.device for span in spans})
    names = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": 0,
            "tid": device,
            "args": {"name": f"device {device}"},
        }
        for device in devices
    ]
    events = [
        {
            "name": span.part,
            "cat": "kdlab",
            "ph": "X",
            "ts": 1e6 * (span.begin - origin),
            "dur": 1e6 * (span.end - span.begin),
            "pid": 0,
            "tid": span.device,
            "args": {"step": span.step},
        }
        for span in spans
    ]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}


def write_chrome_trace(spans: Sequence[Span], path: Path) -> None:
    path.write_text(json.dumps(chrome_trace(spans)), encoding="utf-8")


def by_part(spans: Sequence[Span]) -> dict[int, dict[TimePart | str, float]]:
    """Return seconds of each device by part; gaps and waiting count as idle.

    Receiving and barriers count as waiting: the transfer itself runs in the background.
    """
    seconds: dict[int, dict[TimePart | str, float]] = {}
    if not spans:
        return seconds
    begin, end = min(s.begin for s in spans), max(s.end for s in spans)
    for device in sorted({span.device for span in spans}):
        device_spans = [span for span in spans if span.device == device]
        parts = seconds[device] = {}
        for span in device_spans:
            part = "idle" if span.part in ("receive", "barrier") else span.part
            parts[part] = parts.get(part, 0.0) + span.end - span.begin
        covered = sum(span.end - span.begin for span in device_spans)
        parts["idle"] = parts.get("idle", 0.0) + max(0.0, end - begin - covered)
    return seconds


def breakdown(
    spans: Sequence[Span], ideal: Mapping[str, float], path: Path, title: str = ""
) -> None:
    """Write Fig. 2 of Pipe-BD as PNG: parts of a step on each device, next to the ideal.

    `ideal` has seconds of each part with all work shared evenly by the devices.
    """
    steps = len({span.step for span in spans}) or 1
    bars: dict[str, Mapping[TimePart | str, float]] = {"ideal": dict(ideal)}
    for device, parts in by_part(spans).items():
        bars[f"device {device}"] = {part: s / steps for part, s in parts.items()}
    from matplotlib.figure import Figure  # 1 s
    from matplotlib.patches import Patch

    picture = Figure(figsize=(1.6 * len(bars) + 3, 4), layout="constrained")
    axes = picture.subplots()
    axes.set_title(title, fontsize="medium")
    used = [part for part in COLOURS if any(part in parts for parts in bars.values())]
    for column, times in enumerate(bars.values()):
        bottom = 0.0
        for part in used:
            height = 1e3 * times.get(part, 0.0)
            axes.bar(column, height, 0.7, bottom, color=COLOURS[part], edgecolor="#888888")
            bottom += height
    axes.set_xticks(range(len(bars)), list(bars))
    axes.set_ylabel("ms of a step")
    handles = [Patch(facecolor=COLOURS[p], edgecolor="#888888", label=p) for p in used]
    picture.legend(handles=handles, loc="outside right upper")
    picture.savefig(path, dpi=120)
