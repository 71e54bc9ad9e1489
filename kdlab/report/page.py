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

from kdlab.errors import BadInput
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


# A click on the head of a column sorts by it; once more, the other way round.
_SORTS = """<script>
for (const head of document.querySelectorAll("table tr:first-child > th:not([scope])")) {
  head.tabIndex = 0;
  head.style.cursor = "pointer";
  head.title = "sort by this column";
  const sort = () => {
    const table = head.closest("table"), place = head.cellIndex;
    const up = head.ariaSort === "descending";
    for (const other of head.parentElement.children) other.ariaSort = null;
    head.ariaSort = up ? "ascending" : "descending";
    const value = row => row.cells[place].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)].map(parseFloat);
      return isNaN(x) || isNaN(y) ? value(a).localeCompare(value(b)) : x - y;
    };
    const rows = [...table.rows].slice(1).sort((a, b) => (up ? 1 : -1) * compare(a, b));
    for (const row of rows) row.parentElement.append(row);
  };
  head.onclick = sort;
  head.onkeydown = event => { if (event.key === "Enter") sort(); };
}
</script>"""


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


def whole(title: str, body: str) -> str:
    """A page of its own, whose tables sort."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" '
        f'content="light dark"><title>{html.escape(title)}</title></head>'
        f'<body style="font-family:sans-serif;max-width:60em">{body}{_SORTS}</body></html>'
    )
