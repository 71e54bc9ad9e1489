"""Pages of cards: in a notebook, live or saved, as a file, and in MLflow.

All have the live view's style (`page.css`). All text from configs and clusters is escaped.
Without the style, as on GitHub, headings, lists, tables and pictures remain.
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kdlab.config.folders import user_path
from kdlab.errors import BadInput
from kdlab.report import chart


@dataclass(frozen=True, slots=True)
class Card:
    """A part of a page.

    title: heading; empty for none.
    body: HTML.
    wide: full width; else next to another card where both fit.
    unit: text after the title.
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
    """A page of cards that shows one object.

    title: name of the object; empty for none.
    alerts: lines above the cards, each with its tone (good, warn, bad, or plain).
    detail, state: texts next to the title.
    """

    title: str
    cards: Sequence[Card]
    alerts: Sequence[tuple[str, str]] = ()
    detail: str = ""
    state: str = ""

    def html(self) -> str:
        """Return HTML for a notebook cell."""
        return self._html("strong", "h3")

    def page(self) -> str:
        """Return a standalone page with sortable tables."""
        script = f"<script>{_read('page.js')}</script>"
        return html_document(self.title, self._html("h1", "h2"), script)

    def _html(self, title: str, heading: str) -> str:
        words, detail = html.escape(self.title), html.escape(self.detail)
        badge = f'<span class="kd-state" data-state="{self.state}">{self.state}</span>'
        header = (
            f'<header class="kd-head kd-title"><{title}>{words}</{title}>'
            f'<span class="kd-detail">{detail}</span>{badge if self.state else ""}</header>'
        )
        alerts = "".join(
            f'<p class="kd-verdict" data-tone="{tone}">{html.escape(text)}</p>'
            for tone, text in self.alerts
            if text
        )
        cards = "".join(card.html(heading) for card in self.cards)
        body = f'{header if words else ""}{alerts}<div class="kd-cards">{cards}</div>'
        return f'<div class="kd"><style>{style()}{_read("static.css")}</style>{body}</div>'


class Presentable:
    """Base of objects that show their `document` in a notebook cell and as a standalone page."""

    def document(self) -> CardPage:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.document().html()

    def page(self) -> str:
        """Return a standalone HTML page."""
        return self.document().page()

    def save(self, path: str | Path) -> Path:
        """Write the page to a file; BadInput where that fails."""
        return write(path, self.page())


def style() -> str:
    """Return the CSS of all pages, live or not."""
    return _read("page.css")


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def html_document(title: str, body: str, script: str) -> str:
    """Return a standalone page; its content security policy forbids all requests."""
    return _read("page.html").format(title=html.escape(title), body=body, script=script)


def shown(*cards: Card, alerts: Sequence[tuple[str, str]] = ()) -> str:
    """Return cards without a title, as HTML for a notebook cell."""
    return CardPage("", cards, alerts).html()


def charts(panels: Sequence[chart.Panel]) -> list[Card]:
    """Return a card for each panel, two in a row where they fit."""
    return [
        Card(panel.title, image(drawing, panel.title), wide=False, unit=panel.unit)
        for panel, drawing in zip(panels, chart.drawings(panels), strict=True)
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; an empty head is left out."""
    tops = "".join(
        f"<th>{html.escape(cell)}</th>" if cell else "<td></td>" for cell in head
    )
    head_row = f"<thead><tr>{tops}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="kd-scroll"><table>{head_row}<tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    text = html.escape(str(value))
    return f"<td{' class=kd-long' if len(text) > 40 else ''}>{text}</td>"  # long cells may wrap


def lines(words: Iterable[str]) -> str:
    """Return a paragraph for each line."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in words)


class Rows(list[dict[str, Any]]):
    """Rows with the same keys: a list in code, a table in a notebook."""

    def table(self) -> str:
        return table(list(self[0]), [list(row.values()) for row in self]) if self else ""

    def _repr_html_(self) -> str:
        return shown(Card("", self.table())) if self else ""


def image(drawing: str, alt: str) -> str:
    """Embed an SVG as <img>, which saved notebooks and GitHub show."""
    encoded = base64.b64encode(drawing.encode()).decode()
    source = f"data:image/svg+xml;base64,{encoded}"
    return f'<img alt="{html.escape(alt)}" src="{source}"/>'


def markdown(text: str) -> str:
    """Escape text for Markdown, including HTML."""
    return re.sub(r"([\\`*_{}\[\]()#+!<>|&~])", r"\\\1", " ".join(text.split()))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of unescaped cells: escape foreign text with `markdown` first."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(path: str | Path, text: str) -> Path:
    """Write a page to a file.

    Raises:
        BadInput: the file cannot be written.
    """
    out = user_path(path)
    try:
        out.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise BadInput(f"The page cannot be written to {out}: {error}") from error
    return out
