"""Numbers of results in README and docs are printed from their cards or checked against them."""

import re
from pathlib import Path

import pytest

from benchmarks.reproduce.charts import CHARTS
from benchmarks.reproduce.pages import greyed, printed_again, tables, wrong_numbers

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A number with the unit of a result, in a sentence and without the mark of a result behind it.
RESULT = re.compile(
    r"(?:\d(?:[\d,.]*\d)?|two|three|four|five|six|eight|half)(?: ?± ?[\d.]+)?(?<!\.)\s?"
    r"(?:times as|times the|points (?:better|worse|ahead|above|below)|% (?:top|faster|slower|more "
    r"acc)|(?:samples|labels|images|views)/s)(?!\w)"
)
# What is no result: settings, what a paper has, and words about one's own machine.
NO_RESULTS = (
    "20,000 samples/s",  # what the defaults serve, held by tests/simulate
    "1.05 times the",  # what a need and what an able pool are
    "1.1 times the",
    "7.55 images/s",  # computed from a paper's table
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_numbers_are_those_of_the_cards(page):
    """To print tables again: python -m benchmarks.reproduce.pages README.md docs/*.md."""
    text = page.read_text()
    assert printed_again(text) == text
    assert not list(wrong_numbers(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_claims_a_number_that_nobody_checks(page):
    text = re.sub(r"```.*?```|<!-- results:.*?end of results -->|^\|.*?$", "",
                  page.read_text(), flags=re.DOTALL | re.MULTILINE)  # fmt: skip
    claims = [found[0].replace("\n", " ") for found in RESULT.finditer(text)]
    assert not [claim for claim in claims if claim not in NO_RESULTS]


def test_a_number_that_is_not_the_kept_one_is_found():
    mark = '<!-- storm "kdlab, a failure each 45 s" "times as long as without" -->'
    assert not list(
        wrong_numbers(f"It takes 1.09{mark} times as long, or 1.1 times{mark}.")
    )
    (wrong,) = wrong_numbers(f"It takes 1.19 times{mark} as long.")
    assert wrong.startswith("1.19 is said of storm")
    (wrong,) = wrong_numbers('It takes 3<!-- storm "no such" "row" --> s.')
    assert "which has []" in wrong
    (wrong,) = wrong_numbers(f"It takes long{mark}.")
    assert wrong == "1 of 1 marks of results stand behind no number"


def test_the_page_of_evidence_has_tables_and_older_ones_are_grey():
    text = (ROOT / "docs" / "reproduce.md").read_text()
    assert len(tables(text)) >= 2
    older = text.count("| measured before the code changed |")
    assert greyed(text).count('<div class="kd-older" markdown>') == older


@pytest.mark.parametrize("chart", CHARTS)
def test_a_picture_is_that_of_its_card_or_simulation(chart):
    """To draw them again: python -m benchmarks.reproduce.charts docs/pictures."""
    assert (ROOT / f"docs/pictures/{chart.__name__}.svg").read_text() == chart()
