"""A confusion matrix whose cells open the images behind them."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.report import page
from kdlab.report.calibration import Probabilities
from kdlab.report.confusion import Cell, Confusion
from kdlab.report.page import Card
from kdlab.report.pictures import figures, picture
from kdlab.report.table import text_table_left

_IN_CELL, _SIDE = 6, 64  # images that a cell opens, pixels of one
_CELLS, _RIGHT = 40, 20  # cells that open any: off the diagonal, and on it
_ROWS = 20


class ConfusionMatrix:
    """Counts in a terminal; in a notebook or a page its cells open images.

    Args:
        data: the data set.
        ids: rows of the data set.
        answers: probabilities (images, classes).
        who: name of the model.
    """

    def __init__(
        self, data: ImageData, ids: NDArray[np.integer], answers: Probabilities, who: str
    ) -> None:
        self.data, self.ids, self.answers, self.who = data, ids, answers, who
        self.labels, self.chosen = data.labels[ids], answers.argmax(1)
        self.confusion = Confusion.from_predictions(self.labels, self.chosen, data.classes)

    def __repr__(self) -> str:
        matrix = self.confusion
        rows = matrix.shown(_ROWS)
        head = [f"{self.who}: is, taken for", *(matrix.classes[k] for k in rows)]
        body = [[matrix.classes[k], *map(str, matrix.counts[k, rows])] for k in rows]
        return text_table_left(head, body)

    def _repr_html_(self) -> str:
        return page.shown(Card(f"Confusion matrix of {self.who}", self.html()))

    def html(self) -> str:
        rows = self.confusion.shown(_ROWS)
        opened = {
            *self.confusion.confused(_CELLS),
            *((int(k), int(k)) for k in rows[:_RIGHT]),
        }

        def images(cell: Cell) -> str:
            return self._images(cell) if cell in opened else ""

        key = f"{self.who} {self.chosen.tolist()}".encode()
        name = f"kd-{hashlib.sha256(key).hexdigest()[:10]}"
        return self.confusion.html(name, images, _ROWS)

    def _images(self, cell: Cell) -> str:
        """Images of a cell, the most confident first."""
        true, predicted = cell
        rows = np.flatnonzero((self.labels == true) & (self.chosen == predicted))
        rows = rows[np.argsort(-self.answers.max(1)[rows], kind="stable")]
        few = rows[:_IN_CELL]
        drawn = figures(
            f"{picture(image, _SIDE, '')}<figcaption>{self.answers[k].max():.0%}</figcaption>"
            for k, image in zip(few, self.data.inputs[self.ids[few]], strict=True)
        )
        rest = f"<p>and {len(rows) - len(few)} more</p>" if len(rows) > len(few) else ""
        return drawn + rest
