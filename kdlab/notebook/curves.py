"""The curves of a run on one canvas in the page: points travel as bytes, a few at a time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from kdlab.notebook.watch import Watch

Point = tuple[str, str, float, float]  # panel, curve, x, y


class CurvesWidget(anywidget.AnyWidget):
    """Draws what it is sent. A view that appears later asks for all of it.

    `again` is the code that shows it again; the page names it when the kernel is gone. `seen` is
    called when a view has said hello, by whatever thread; it calls `reset`.
    """

    _esm = Path(__file__).with_name("canvas.js")
    again = traitlets.Unicode().tag(sync=True)

    def __init__(self, watch: Watch, again: str, seen: Callable[[], None]) -> None:
        super().__init__(again=again)
        self._watch, self._seen, self._chapter = watch, seen, 0
        self._names: list[tuple[str, str]] = []
        self._lines: dict[str, dict[str, float]] = {}
        self.on_msg(self._hear)

    def _hear(self, widget: object, message: Mapping[str, object], buffers: object) -> None:
        if message.get("kind") == "hello":
            self._seen()

    def reset(self) -> None:
        """All curves as they are now, to every view."""
        curves, self._chapter = dict(self._watch.curves), self._watch.chapter
        self._names = sorted(curves, key=lambda key: self._watch.panels.index(key[0]))
        self._lines = {k: dict(v) for k, v in self._watch.lines.items()}
        rows = [
            (number, x, y)
            for number, key in enumerate(self._names)
            for x, y in list(curves[key])
        ]
        message = {
            "kind": "reset",
            "names": self._names,
            "lines": self._lines,
            "strides": [curves[key].stride for key in self._names],
        }
        self._tell(message, rows)

    def add(self, news: Sequence[Point]) -> None:
        """What is new; curves that were not there before make it send all."""
        keys = {(panel, name) for panel, name, _, _ in news}
        if keys - set(self._names) or self._chapter != self._watch.chapter:
            self.reset()
            return
        lines = {k: dict(v) for k, v in self._watch.lines.items()}
        changed = lines != self._lines
        if not news and not changed:
            return
        self._lines = lines
        places = {key: number for number, key in enumerate(self._names)}
        rows = [(places[panel, name], x, y) for panel, name, x, y in news]
        self._tell({"kind": "add"} | ({"lines": lines} if changed else {}), rows)

    def _tell(
        self, message: Mapping[str, object], rows: Sequence[tuple[int, float, float]]
    ) -> None:
        self.send(message, buffers=[np.array(rows, np.float64).tobytes()])
