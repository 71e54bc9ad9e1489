"""A confusion matrix as text, and as HTML that needs no script.

A cell opens the images behind it as a popover, which browsers do by themselves.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]  # class an image is of, class it is taken for
_BLUE, _RED = "59,130,196", "209,96,61"


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of images, by class (rows) and what they were taken for (columns)."""

    classes: Sequence[str]
    counts: NDArray[np.int64]  # (classes, classes)

    @classmethod
    def of(
        cls, labels: NDArray[np.integer], said: NDArray[np.integer], classes: Sequence[str]
    ) -> "Confusion":
        counts = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(counts, (labels, said), 1)
        return cls(classes, counts)

    def confused(self, most: int) -> list[Cell]:
        """Off the diagonal, the commonest first; those that happened."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        cells = [divmod(int(place), len(self.classes)) for place in order]
        return [cell for cell in cells if wrong[cell]]

    def shown(self, most: int) -> NDArray[np.int64]:
        """The classes of a matrix with so many rows: all, or those with most errors."""
        if len(self.classes) <= most:
            return np.arange(len(self.classes))
        wrong = self.counts.sum(0) + self.counts.sum(1) - 2 * np.diag(self.counts)
        return np.sort(np.argsort(-wrong, kind="stable")[:most])

    def html(self, name: str, images: Callable[[Cell], str], most: int = 20) -> str:
        """The matrix.

        Args:
            name: of it in the page; ids of its cells begin so.
            images: HTML of the images behind a cell; empty where it opens none.
            most: rows.
        """
        rows = [int(k) for k in self.shown(most)]
        names = [html.escape(one) for one in self.classes]
        body, opened = "", ""
        for true in rows:
            body += f'<tr><th scope="row">{names[true]}</th>'
            for said in rows:
                count = int(self.counts[true, said])
                words = f"{count} of {names[true]} are "
                words += "right" if true == said else f"taken for {names[said]}"
                text = str(count or "")
                if count and (inside := images((true, said))):
                    ident = f"{name}-{true}-{said}"
                    opens = f'popovertarget="{ident}" aria-label="{words}"'
                    text = f'<button type="button" {opens}>{text}</button>'
                    opened += (
                        f'<div popover id="{ident}"><p><b>{words}</b></p>{inside}</div>'
                    )
                body += f'<td{self._shade(true, said)} title="{words}">{text}</td>'
            body += "</tr>"
        few = f"the {len(rows)} of {len(names)} classes with most errors; "
        heads = "".join(f'<th scope="col">{names[k]}</th>' for k in rows)
        return (
            f'<p class="kd-note">{few if len(rows) < len(names) else ""}rows: true class; '
            'columns: predicted class</p><div class="kd-scroll"><table class="kd-matrix"><thead>'
            f"<tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table>{opened}</div>"
        )

    def _shade(self, true: int, said: int) -> str:
        """The stronger the larger a cell's share of its row."""
        if not (count := int(self.counts[true, said])):
            return ""
        share = count / int(self.counts[true].sum())
        colour = _BLUE if true == said else _RED
        return f' style="background:rgba({colour},{min(0.6, 0.1 + 0.6 * share):.2f})"'
