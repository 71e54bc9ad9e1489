"""A confusion matrix as HTML without scripts.

A cell opens its images as a popover, which browsers support natively.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]  # true class, predicted class
_BLUE, _RED = "59,130,196", "209,96,61"


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of images by true class (rows) and predicted class (columns)."""

    classes: Sequence[str]
    counts: NDArray[np.int64]  # (classes, classes)

    @classmethod
    def from_predictions(
        cls,
        labels: NDArray[np.integer],
        guesses: NDArray[np.integer],
        classes: Sequence[str],
    ) -> "Confusion":
        counts = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(counts, (labels, guesses), 1)
        return cls(classes, counts)

    def confused(self, most: int) -> list[Cell]:
        """Return off-diagonal cells with images, most frequent first."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        cells = [divmod(int(place), len(self.classes)) for place in order]
        return [cell for cell in cells if wrong[cell]]

    def shown(self, most: int) -> NDArray[np.int64]:
        """Return the classes of a matrix with at most `most` rows: those with most errors."""
        if len(self.classes) <= most:
            return np.arange(len(self.classes))
        wrong = self.counts.sum(0) + self.counts.sum(1) - 2 * np.diag(self.counts)
        return np.sort(np.argsort(-wrong, kind="stable")[:most])

    def html(self, name: str, images: Callable[[Cell], str], most: int = 20) -> str:
        """Return the matrix as HTML.

        Args:
            name: prefix of the ids of its cells.
            images: returns HTML of a cell's images; empty for no popover.
            most: most rows.
        """
        rows = [int(k) for k in self.shown(most)]
        names = [html.escape(one) for one in self.classes]
        body, popovers = "", ""
        for true in rows:
            body += f'<tr><th scope="row">{names[true]}</th>'
            for predicted in rows:
                count = int(self.counts[true, predicted])
                words = f"{count} of {names[true]} are "
                words += "right" if true == predicted else f"taken for {names[predicted]}"
                text = str(count or "")
                if count and (inside := images((true, predicted))):
                    ident = f"{name}-{true}-{predicted}"
                    opens = f'popovertarget="{ident}" aria-label="{words}"'
                    text = f'<button type="button" {opens}>{text}</button>'
                    popovers += (
                        f'<div popover id="{ident}"><p><b>{words}</b></p>{inside}</div>'
                    )
                body += f'<td{self._shade(true, predicted)} title="{words}">{text}</td>'
            body += "</tr>"
        subset = f"the {len(rows)} of {len(names)} classes with most errors; "
        heads = "".join(f'<th scope="col">{names[k]}</th>' for k in rows)
        return (
            f'<p class="kd-note">{subset if len(rows) < len(names) else ""}rows: true class; '
            'columns: predicted class</p><div class="kd-scroll"><table class="kd-matrix"><thead>'
            f"<tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table>{popovers}</div>"
        )

    def _shade(self, true: int, predicted: int) -> str:
        """Return a cell's colour, stronger for a larger share of its row."""
        if not (count := int(self.counts[true, predicted])):
            return ""
        share = count / int(self.counts[true].sum())
        colour = _BLUE if true == predicted else _RED
        return f' style="background:rgba({colour},{min(0.6, 0.1 + 0.6 * share):.2f})"'
