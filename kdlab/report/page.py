"""Tables and pictures as HTML that reads everywhere: notebooks, saved or live, and MLflow.

Everything that comes from a config or a cluster is escaped. Styles are inline, which untrusted
notebooks keep; text is grey, which reads on light and on dark pages.
"""

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdlab.report.chart import NARROW


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """With inline styles: untrusted notebooks keep them."""
    cell = 'style="text-align:left;padding:1px 10px 1px 0;font-size:12px"'
    tops = "".join(f"<th {cell}>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td {cell}>{html.escape(str(v))}</td>" for v in row) + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse"><tr>{tops}</tr>{body}</table>'


class Rows(list[dict[str, Any]]):
    """Rows of one shape: a list in code, a table in a notebook."""

    def _repr_html_(self) -> str:
        return table(list(self[0]), [list(row.values()) for row in self]) if self else ""


def image(drawing: str, alt: str = "curves") -> str:
    """An SVG as an <img>, which saved notebooks and GitHub show."""
    encoded = base64.b64encode(drawing.encode()).decode()
    source = f"data:image/svg+xml;base64,{encoded}"
    return f'<img alt="{html.escape(alt)}" {NARROW} src="{source}"/>'


def png(path: Path, alt: str) -> str:
    """A picture as it is, inside the page."""
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{encoded}"/>'


def markdown(text: str) -> str:
    """Words of a config as they are, whatever Markdown or HTML would make of them."""
    return re.sub(r"([\\`*_{}\[\]()#+!<>|&~])", r"\\\1", " ".join(text.split()))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells as they are: what is somebody's words goes through `markdown` before."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def whole(title: str, body: str) -> str:
    """A page of its own."""
    return (
        '<!doctype html><html><head><meta charset="utf-8"><meta name="color-scheme" '
        f'content="light dark"><title>{html.escape(title)}</title></head>'
        f'<body style="font-family:sans-serif;max-width:60em">{body}</body></html>'
    )
