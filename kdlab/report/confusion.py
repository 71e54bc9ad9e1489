"""Which classes are taken for which: a confusion matrix as text, and as HTML that needs no script.

A cell opens the images behind it as a popover, which browsers do by themselves.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]  # class an image is of, class it is taken for
_BLUE, _RED = "59,130,196", "209,96,61"
_CELL = "border:1px solid #8883;padding:0;text-align:center;min-width:30px;height:26px"
_BUTTON = (
    "all:unset;cursor:pointer;display:block;width:100%;text-align:center;line-height:26px"
)


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
        rows = self.shown(most)
        heads = "".join(
            '<th scope="col" style="writing-mode:vertical-rl;font-weight:normal;'
            f'padding:4px 2px">{html.escape(self.classes[k])}</th>'
            for k in rows
        )
        body, opened = [], []
        for true in rows:
            own = max(1, int(self.counts[true].sum()))
            cells = []
            for said in rows:
                count = int(self.counts[true, said])
                inside = images((int(true), int(said))) if count else ""
                ident = f"{name}-{true}-{said}"
                cells.append(
                    self._cell(count, count / own, int(true), int(said), inside, ident)
                )
                if inside:
                    opened.append(self._popover(count, int(true), int(said), inside, ident))
            head = (
                '<th scope="row" style="text-align:right;font-weight:normal;padding:0 6px">'
            )
            body.append(
                f"<tr>{head}{html.escape(self.classes[true])}</th>{''.join(cells)}</tr>"
            )
        less = (
            f"<div>the {len(rows)} of {len(self.classes)} classes with most errors</div>"
            if len(rows) < len(self.classes)
            else ""
        )
        return (
            f'<div style="font-size:12px;overflow-x:auto">{less}<table style="border-collapse:'
            'collapse"><caption style="text-align:left">rows: the class; columns: what it is '
            "taken for</caption><thead><tr><td></td>"
            f"{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>{''.join(opened)}</div>"
        )

    def _cell(
        self, count: int, share: float, true: int, said: int, inside: str, ident: str
    ) -> str:
        """One of the table, the stronger the larger its share of the row."""
        colour = _BLUE if true == said else _RED
        ground = (
            f"background:rgba({colour},{min(0.6, 0.1 + 0.6 * share):.2f})" if count else ""
        )
        words = self._words(count, true, said)
        text = str(count) if count else ""
        if inside:
            text = (
                f'<button type="button" popovertarget="{ident}" style="{_BUTTON}" '
                f'aria-label="{words}">{text}</button>'
            )
        return f'<td style="{_CELL};{ground}" title="{words}">{text}</td>'

    def _popover(self, count: int, true: int, said: int, inside: str, ident: str) -> str:
        return (
            f'<div popover id="{ident}" style="max-width:640px;border:1px solid #888;'
            'border-radius:8px;padding:12px"><div style="margin-bottom:8px">'
            f"<b>{self._words(count, true, said)}</b></div>{inside}</div>"
        )

    def _words(self, count: int, true: int, said: int) -> str:
        one, other = self.classes[true], self.classes[said]
        if true == said:
            return html.escape(f"{count} of {one} are right")
        return html.escape(f"{count} of {one} are taken for {other}")
