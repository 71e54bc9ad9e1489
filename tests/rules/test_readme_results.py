"""Tables of results in README and docs are printed from their cards."""

import re
from pathlib import Path

import pytest

from kdlab.reproduce.command import kept, markdown_rows
from kdlab.reproduce.engines_chart import engines_chart
from kdlab.reproduce.guide_charts import pipelines, placing, rivals, storm
from kdlab.reproduce.headline import headline

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


def test_the_chart_of_engines_is_that_of_their_card():
    """To draw it again: python -m kdlab.reproduce.engines_chart docs/pictures/engines.svg."""
    assert (ROOT / "docs/pictures/engines.svg").read_text() == engines_chart()


def test_the_picture_of_the_readme_is_that_of_the_cards():
    """To draw it again: python -m kdlab.reproduce.headline docs/pictures/headline.svg."""
    assert (ROOT / "docs/pictures/headline.svg").read_text() == headline()


def test_the_chart_of_pipelines_is_that_of_the_simulation():
    """To draw it again: python -m kdlab.reproduce.guide_charts docs/pictures."""
    assert (ROOT / "docs/pictures/pipelines.svg").read_text() == pipelines()


def test_the_chart_of_rivals_is_that_of_their_card():
    """To draw it again: as above."""
    assert (ROOT / "docs/pictures/rivals.svg").read_text() == rivals()


def test_the_drawing_of_parts_is_that_of_the_simulation():
    """To draw it again: as above."""
    assert (ROOT / "docs/pictures/placing.svg").read_text() == placing()


def test_the_chart_of_the_storm_is_that_of_its_card():
    """To draw it again: as above."""
    assert (ROOT / "docs/pictures/storm.svg").read_text() == storm()
