"""Tables of results in README and docs are printed from their cards."""

import re
from pathlib import Path

import pytest

from kdlab.reproduce.command import kept, markdown_rows

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"<!-- results: (\S+)((?: \"[^\"]+\")*) -->\n(.*?)<!-- end of results -->", re.DOTALL
)


def blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name, words, table in BLOCK.findall(path.read_text()):
            quantities = re.findall(r'"([^"]+)"', words)
            yield pytest.param(name, quantities, table, id=f"{path.name}: {name}")


@pytest.mark.parametrize(("name", "quantities", "table"), blocks())
def test_a_table_is_that_of_its_card(name, quantities, table):
    assert table.strip() == markdown_rows(kept(name).fields(), quantities)


def test_the_readme_has_some():
    assert len(list(blocks())) >= 2
