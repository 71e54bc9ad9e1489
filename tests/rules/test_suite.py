"""Marks and imports of tests are read as pytest and Python take them."""

import ast

import pytest
from rules import house, suite

TEXT = """
import pytest
from kdlab import errors
from kdlab.run import catalogue, doctor
from kdlab.tuning.space import spaces

pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.processes(" starts one ")]
slow = pytest.mark.slow("three ranks")

@slow
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=[pytest.mark.nightly("twice")])])
def test_whole(n): assert doctor

@pytest.fixture
def place(): from kdlab.run import estimate; return catalogue.place

class TestPart:
    pytestmark = pytest.mark.gpu
    def test_more(self): errors.KdlabError

def helper(): pass
"""


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Cases of a file with this text."""
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()

    def cases(text, name="test_a.py"):
        path = tmp_path / "tests" / name
        path.write_text(text)
        monkeypatch.setattr(suite, "FILES", [path])
        _forget()
        return {case.name.partition("::")[2]: case for case in suite.cases_of(path)}

    yield cases
    _forget()


def _forget():
    suite.in_unit_tests.cache_clear()
    suite._files_of_tests.cache_clear()


def test_marks_are_a_tests_own_its_classs_and_its_files(read):
    cases = read(TEXT)
    assert list(cases) == ["test_whole", "TestPart::test_more"]
    first, more = cases.values()
    assert first.has("slow")
    assert first.has("processes")
    assert not first.has("nightly")
    assert first.for_some == (suite.Mark("nightly", "twice"),)
    assert first.reasons() == ["starts one", "three ranks", "twice"]
    assert more.has("gpu")
    assert more.reasons() == ["starts one"]


MADE = """
def values():
    for n in (1, 2):
        yield pytest.param(n, marks=() if n == 1 else pytest.mark.nightly)

ALL = [pytest.param(3, marks=pytest.mark.slow("three of them")), *values()]

@pytest.mark.parametrize("n", ALL)
def test_it(n): pass

@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.nightly)])
def wherever(request): pass

def test_there(wherever): pass

@pytest.fixture(params=[
    pytest.param(1, marks=pytest.mark.processes("one")),
    pytest.param(2, marks=pytest.mark.nightly),
])
def ranks(request): pass

def test_ranks(ranks): pass
"""


def test_marks_of_values_may_be_made_by_the_file(read):
    case, there, ranks = read(MADE).values()
    assert {(m.name, m.reason) for m in case.for_some} == {
        ("slow", "three of them"),
        ("nightly", ""),
    }
    assert not case.has("slow", "nightly")
    assert there.for_some == (suite.Mark("nightly"),)
    assert not there.has("nightly")
    assert ranks.has("processes")  # whatever its value is, it starts some
    assert not ranks.has("nightly")


def test_a_file_of_whole_tests_shows_no_module(read):
    read(TEXT)
    assert suite.in_unit_tests() == set()


def test_what_only_a_whole_test_uses_does_not_count(read):
    read(
        TEXT.replace("pytest.mark.processes", "pytest.mark.skipif").replace(
            "mark.gpu", "mark.a"
        )
    )
    assert suite.in_unit_tests() == {
        "kdlab.errors",
        "kdlab.run.catalogue",
        "kdlab.run.estimate",
    }
    assert "kdlab.run.doctor" in suite.untested(["run"])
    assert "kdlab.run.catalogue" not in suite.untested(["run"])


SHARED = """
from kdlab.run import catalogue, doctor
import kdlab.run.port_audit

def made(): return built()
def built(): return catalogue
def other(): return doctor
"""


def test_what_tests_share_counts_by_what_is_used_of_it(read, tmp_path):
    (tmp_path / "tests" / "shared_runs.py").write_text(SHARED)
    read("from shared_runs import made, other\ndef test_it(): made()")
    assert suite.in_unit_tests() == {"kdlab.run.catalogue"}
    (tmp_path / "tests" / "conftest.py").write_text(
        "from shared_runs import other\n\n"
        "@pytest.fixture\ndef run(): return other()\n\n@pytest.fixture\ndef no(): made()"
    )
    read("def test_it(run): pass", "test_b.py")
    assert suite.in_unit_tests() == {"kdlab.run.doctor"}


def test_tests_have_the_names_that_pytest_gives_them(request):
    collected = {item.nodeid.split("[")[0] for item in request.session.items}
    machines = {name for name in collected if name.endswith("::runTest")}  # of Hypothesis
    assert collected - machines <= suite.cases().keys()


def test_circles_are_found_whole():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert house.circles_of(graph) == [["a", "b", "c"], ["d", "e"]]
    assert house.circles_of({"a": {"b"}, "b": set()}) == []


ALIASES = """
A_B = list[int]
Part = int | str
Parts: TypeAlias = "Part"
_Row = tuple[int]
Same = Part
T = TypeVar("T")
made: dict[str, int] = {}
"""


def test_aliases_are_names_that_are_bound_to_types():
    assert list(house.aliases(ast.parse(ALIASES))) == ["Part", "Parts", "_Row"]
