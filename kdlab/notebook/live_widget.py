"""The live view, or a form, in the page: an anywidget whose facts are traits, points bytes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from kdlab.events.curve import Curve, CurveKey
from kdlab.report import page

_PAGE = Path(__file__).with_name("page")
# One module for the browser; each file uses what is before it.
_MODULES = ("series", "chart", "cards", "controls", "film", "sweep", "live", "form")


def read(name: str) -> str:
    """A file of the page."""
    return (_PAGE / name).read_text(encoding="utf-8")


def script() -> str:
    """The JavaScript of the view."""
    return "\n".join(read(f"{one}.js") for one in _MODULES)


def style() -> str:
    """Its CSS, after that of all pages."""
    return page.style() + read("live.css")


class LiveWidget(anywidget.AnyWidget):
    """Shows the state it is given and draws the points it is sent.

    A view that appears later asks for all of them: `seen` is called when one has said hello, by
    whatever thread, and calls `reset`; `ordered`, when somebody pressed a button. `again` is the
    code that shows it again; the page names it when the kernel is gone. `of` is what it is of, as
    the saved picture below it says.
    """

    _esm = script()
    _css = style()
    state = traitlets.Dict().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)  # buttons and dials, and the newest answer
    strip = traitlets.Unicode().tag(sync=True)  # images that are watched, beside each other
    of = traitlets.Unicode().tag(sync=True)
    again = traitlets.Unicode().tag(sync=True)

    def __init__(self, of: str, again: str, seen: Callable[[], None]) -> None:
        super().__init__(of=of, again=again)
        self._seen = seen
        self.ordered: Callable[[object], None] | None = None
        self._keys: list[CurveKey] = []
        self._caught: list[tuple[Mapping[str, object], bytes]] | None = None
        self.on_msg(self._hear)

    def _hear(self, widget: object, message: Mapping[str, object], buffers: object) -> None:
        if message.get("kind") == "hello":
            self._seen()
        elif message.get("kind") == "order" and self.ordered is not None:
            self.ordered(message)

    def reset(self, curves: Mapping[CurveKey, Curve], dots: Sequence[str] = ()) -> None:
        """These curves and no others, to every view; those named in `dots` as dots."""
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
        self._tell({"kind": "reset", "curves": named}, rows)

    def add(self, news: Sequence[tuple[CurveKey, float, float]]) -> bool:
        """What is new; False, and nothing sent, where it is of a curve no view knows."""
        places = {key: number for number, key in enumerate(self._keys)}
        if any(key not in places for key, _, _ in news):
            return False
        if news:
            self._tell({"kind": "add"}, [(places[key], x, y) for key, x, y in news])
        return True

    def _tell(
        self, message: Mapping[str, object], rows: Sequence[tuple[int, float, float]]
    ) -> None:
        points = np.array(rows, np.float64).tobytes()
        if self._caught is not None:
            self._caught.append((message, points))
        else:
            self.send(message, buffers=[points])

    @contextmanager
    def caught(self) -> Iterator[list[tuple[Mapping[str, object], bytes]]]:
        """A list into which goes what pages would be told meanwhile."""
        self._caught = list[tuple[Mapping[str, object], bytes]]()
        try:
            yield self._caught
        finally:
            self._caught = None
