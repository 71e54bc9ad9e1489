"""Findings of checks: the worst first, the newest of each code, and all text escaped."""

from kdlab.events.checks import CheckMade
from kdlab.report.check_table import cards, in_words, worst_first


def finding(code, result, text="", advice=""):
    return CheckMade(code=code, result=result, title="so it is", found=text, advice=advice)


SEEN = [
    finding("KD-R01", "passed"),
    finding("KD-D08", "tip", "few images", "More"),
    finding("KD-D01", "passed"),
    finding("KD-D01", "issue", "2 images:\n  <b>1.png", "Delete"),
]


def test_the_worst_comes_first_and_the_newest_counts():
    findings = worst_first(SEEN)
    assert [(check.code, check.result) for check in findings] == [
        ("KD-D01", "issue"),
        ("KD-D08", "tip"),
        ("KD-R01", "passed"),
    ]


def test_in_words_each_has_its_advice_below():
    words = in_words(worst_first(SEEN)).splitlines()
    assert [line.split()[0] for line in words] == [
        "issue", "<b>1.png", "Delete", "tip", "More", "passed",
    ]  # fmt: skip
    assert in_words(worst_first(SEEN), passed=False).endswith("1 more checks")
    assert in_words([]) == ""


def test_names_on_a_page_are_no_html():
    (card,) = cards(worst_first(SEEN))
    html = card.html("h3")
    assert "&lt;b&gt;1.png" in html
    assert "<b>1" not in html
    assert '<b data-tone="bad">issue KD-D01</b>' in html
    assert '<b data-tone="warn">tip KD-D08</b>' in html
    assert "1 checks passed" in html
    assert cards([]) == []
