"""Plain words in code, docs and messages: `python -m rules.words` lists what is not."""

import ast

import pytest
from rules import house, words

PAGES = sorted(
    [
        house.ROOT / "README.md",
        *(house.ROOT / "docs").glob("*.md"),
        *(house.KDLAB / "checks" / "pages").glob("*.md"),
        *house.KDLAB.rglob("*.js"),
    ]
)


CODE = [*house.FILES, *sorted((house.ROOT / "tests").rglob("*.py"))]


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(house.ROOT)))
def test_code_says_it_in_plain_words(path):
    assert words.findings(path) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_say_it_in_plain_words(path):
    assert words.findings(path) == []


def names(source):
    return [name for _, name in words.names(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("found = 1", ["found"]),
        ("def one(x): pass", ["one"]),
        ("def f(*, made): pass", ["made"]),
        ("class A:\n    def g(self):\n        self._kept = 1", ["_kept"]),
        ("for own in x: pass", ["own"]),
        ("lambda whole: whole", ["whole"]),
        ("import a as other", ["other"]),
        ("try:\n    pass\nexcept E as told:\n    pass", ["told"]),
        ("match x:\n    case [here]:\n        pass", ["here"]),
        ("[one for one in x]", []),
        ("x.found", []),
        ("f(found=1)", []),
        ("founder = 1", []),
    ],
)
def test_names_that_say_nothing_are_found_where_they_are_bound(source, bound):
    assert names(source) == bound


def test_scripts_of_the_live_view_have_names_that_say_something():
    source = "const made = 1;\nthis.kept = 2;\nif (this.kept === 2) f(made);\nlet maker;"
    assert list(words.names_in_script(source)) == [(1, "made"), (2, "kept")]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("What it is.", True),
        ("Whether it is.", True),
        ("The same, later.", True),
        ("Whatever happens.", False),
        ("Offset in bytes.", False),
        ("Assert that it is.", False),
    ],
)
def test_a_docstring_opens_with_a_noun_or_a_verb(text, counts):
    tree = ast.parse(f'def f():\n    """{text}"""')
    assert bool(list(words.openings(tree))) == counts


def test_a_name_of_before_is_refused_with_the_new_one():
    (hit,) = words.renamed(ast.parse("class Watched: pass"))
    assert hit == (1, "Watched is called `JobHandle` now (docs/glossary.md)")


def test_phrases_are_found_in_comments_strings_and_pages():
    source = 'x = 1  # it is gone_on with\ny = "plain"\n'.replace("_", " ")
    assert [line for line, _ in words.phrases(words.spoken(source))] == [1]
    assert list(words.phrases("It continues.")) == []
