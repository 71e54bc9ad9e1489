"""Pages of cards: in a notebook, live or saved, as a file, and in MLflow.

All have the live view's style (`page.css`). Everything that comes from a config or a cluster is
escaped. Where the style is taken away, as GitHub does, headings, lists, tables and pictures stay.
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kdlab.errors import BadInput
from kdlab.report import chart


@dataclass(frozen=True, slots=True)
class Card:
    """A part of a page.

    title: words above it; empty for none.
    body: HTML.
    wide: across the page; else beside another one where both fit.
    unit: words behind the title.
    """

    title: str
    body: str
    wide: bool = True
    unit: str = ""

    def html(self, level: str) -> str:
        unit = f'<span class="kd-unit">{html.escape(self.unit)}</span>' if self.unit else ""
        title = html.escape(self.title)
        head = f"<{level}>{title}{unit}</{level}>" if title else ""
        half = "" if self.wide else " kd-chart"
        return f'<section class="kd-card{half}">{head}{self.body}</section>'


@dataclass(frozen=True, slots=True)
class CardPage:
    """Cards of an object, below its name.

    title: its name; empty for none.
    said: lines above the cards, each with its tone (good, warn, bad, or plain).
    detail, state: beside the title.
    """

    title: str
    cards: Sequence[Card]
    said: Sequence[tuple[str, str]] = ()
    detail: str = ""
    state: str = ""

    def html(self) -> str:
        """For a cell of a notebook."""
        return self._html("strong", "h3")

    def page(self) -> str:
        """A page of its own, whose tables sort."""
        script = f"<script>{_read('page.js')}</script>"
        return whole(self.title, self._html("h1", "h2"), script)

    def _html(self, title: str, heading: str) -> str:
        words, detail = html.escape(self.title), html.escape(self.detail)
        badge = f'<span class="kd-state" data-state="{self.state}">{self.state}</span>'
        top = (
            f'<header class="kd-head kd-title"><{title}>{words}</{title}>'
            f'<span class="kd-detail">{detail}</span>{badge if self.state else ""}</header>'
        )
        said = "".join(
            f'<p class="kd-verdict" data-tone="{tone}">{html.escape(text)}</p>'
            for tone, text in self.said
            if text
        )
        cards = "".join(card.html(heading) for card in self.cards)
        body = f'{top if words else ""}{said}<div class="kd-cards">{cards}</div>'
        return f'<div class="kd"><style>{style()}{_read("static.css")}</style>{body}</div>'


class Presentable:
    """An object that shows its `document`: in a cell of a notebook, and as a page of its own."""

    def document(self) -> CardPage:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.document().html()

    def page(self) -> str:
        """All of it as one HTML page of its own."""
        return self.document().page()

    def save(self, path: str | Path) -> Path:
        """The page as a file; BadInput where it cannot be written."""
        return write(path, self.page())


def style() -> str:
    """The CSS of all pages, live or not."""
    return _read("page.css")


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def whole(title: str, body: str, script: str) -> str:
    """A page of its own: a browser that keeps to its policy asks nobody for anything."""
    return _read("page.html").format(title=html.escape(title), body=body, script=script)


def shown(*cards: Card, said: Sequence[tuple[str, str]] = ()) -> str:
    """Cards without a title, for a cell of a notebook."""
    return CardPage("", cards, said).html()


def charts(panels: Sequence[chart.Panel]) -> list[Card]:
    """A card for each panel, two beside each other where they fit."""
    return [
        Card(panel.title, image(drawing, panel.title), wide=False, unit=panel.unit)
        for panel, drawing in zip(panels, chart.drawings(panels), strict=True)
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a head without words is left out."""
    tops = "".join(f"<th>{html.escape(one)}</th>" if one else "<td></td>" for one in head)
    top = f"<thead><tr>{tops}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="kd-scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    text = html.escape(str(value))
    return (
        f"<td{' class=kd-long' if len(text) > 40 else ''}>{text}</td>"  # it may be folded
    )


def lines(words: Iterable[str]) -> str:
    """A paragraph for each."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in words)


class Rows(list[dict[str, Any]]):
    """Rows of one shape: a list in code, a table in a notebook."""

    def table(self) -> str:
        return table(list(self[0]), [list(row.values()) for row in self]) if self else ""

    def _repr_html_(self) -> str:
        return shown(Card("", self.table())) if self else ""


def image(drawing: str, alt: str) -> str:
    """An SVG as an <img>, which saved notebooks and GitHub show."""
    encoded = base64.b64encode(drawing.encode()).decode()
    source = f"data:image/svg+xml;base64,{encoded}"
    return f'<img alt="{html.escape(alt)}" src="{source}"/>'


def markdown(text: str) -> str:
    """Words of a config as they are, whatever Markdown or HTML would make of them."""
    return re.sub(r"([\\`*_{}\[\]()#+!<>|&~])", r"\\\1", " ".join(text.split()))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells as they are: what is somebody's words goes through `markdown` before."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(path: str | Path, text: str) -> Path:
    """A page as a file.

    Raises:
        BadInput: it cannot be written there.
    """
    out = Path(path).expanduser()
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The page cannot be written to {out}: {error}") from error
    return out
