"""The widget of live views and forms: facts are traits, points are bytes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from kdlab.events.curve import Curve, CurveKey
from kdlab.report import page

_PAGE = Path(__file__).with_name("page")
# Concatenated for the browser; each file uses those before it.
_MODULES = ("series", "chart", "cards", "controls", "film", "sweep", "live", "form")


def read(name: str) -> str:
    """Read a file of the page."""
    return (_PAGE / name).read_text(encoding="utf-8")


def script() -> str:
    """Return the JavaScript of the view."""
    return "\n".join(read(f"{name}.js") for name in _MODULES)


def style() -> str:
    """Return the CSS of the view, after that of all pages."""
    return page.style() + read("live.css")


class LiveWidget(anywidget.AnyWidget):
    """Shows the state it is given and draws the points it is sent.

    `on_hello` is called, on any thread, when a view appears, and calls `reset`; `ordered` is
    called when a button is pressed. `again` is code that shows the view again; the page names it
    when the kernel has ended. `of` is the run's id, as in the snapshot below the view.
    """

    _esm = script()
    _css = style()
    state = traitlets.Dict().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)  # buttons, dials and the newest reply
    strip = traitlets.Unicode().tag(sync=True)  # watched images in a row, as a data URL
    of = traitlets.Unicode().tag(sync=True)
    again = traitlets.Unicode().tag(sync=True)

    def __init__(self, of: str, again: str, on_hello: Callable[[], None]) -> None:
        super().__init__(of=of, again=again)
        self._on_hello = on_hello
        self.ordered: Callable[[object], None] | None = None
        self._keys: list[CurveKey] = []
        self._captured: list[tuple[Mapping[str, object], bytes]] | None = None
        self.on_msg(self._receive)

    def _receive(self, _: object, message: Mapping[str, object], buffers: object) -> None:
        if message.get("kind") == "hello":
            self._on_hello()
        elif message.get("kind") == "order" and self.ordered is not None:
            self.ordered(message)

    def reset(self, curves: Mapping[CurveKey, Curve], dots: Sequence[str] = ()) -> None:
        """Replace the curves of all views; those named in `dots` are drawn as dots."""
        self._keys = list(curves)
        rows = [
            (number, x, y)
            for number, key in enumerate(self._keys)
            for x, y in list(curves[key])
        ]
        named = [
            {"panel": panel, "name": name, "run": run, "dots": name in dots}
            for panel, name, run in self._keys
        ]
        self._send_points({"kind": "reset", "curves": named}, rows)

    def add(self, news: Sequence[tuple[CurveKey, float, float]]) -> bool:
        """Send new points; return False, and send nothing, if a curve is unknown to the views."""
        places = {key: number for number, key in enumerate(self._keys)}
        if any(key not in places for key, _, _ in news):
            return False
        if news:
            self._send_points({"kind": "add"}, [(places[key], x, y) for key, x, y in news])
        return True

    def _send_points(
        self, message: Mapping[str, object], rows: Sequence[tuple[int, float, float]]
    ) -> None:
        points = np.array(rows, np.float64).tobytes()
        if self._captured is not None:
            self._captured.append((message, points))
        else:
            self.send(message, buffers=[points])

    @contextmanager
    def capture(self) -> Iterator[list[tuple[Mapping[str, object], bytes]]]:
        """Collect messages to pages in a list, instead of sending them."""
        self._captured = list[tuple[Mapping[str, object], bytes]]()
        try:
            yield self._captured
        finally:
            self._captured = None
