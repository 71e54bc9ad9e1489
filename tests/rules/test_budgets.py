"""kdlab/ and benchmarks/ keep to their budgets, and the budgets only fall."""

import subprocess

import pytest
from rules import budgets, house
from rules.budgets import FILE, MANY, Row

TABLE = budgets.read(FILE.read_text())
LOWER = "`make house` lowers it"


@pytest.fixture(scope="module")
def now():
    return budgets.counted()


def test_each_room_has_a_row(now):
    assert TABLE.rooms.keys() == now.rooms.keys()


def test_a_room_is_at_most_its_row(now):
    over = {
        name: f"{now.rows()[name].most} of {row.most}"
        for name, row in TABLE.rows().items()
        if name in now.rows() and now.rows()[name].most > row.most
    }
    assert not over, "join what exists, or raise the row and say for what"


def test_a_row_falls_with_its_room(now):
    high = {
        name: f"{row.most}, the code {now.rows()[name].most}"
        for name, row in TABLE.rows().items()
        if name in now.rows() and row.most - row.slack > now.rows()[name].most
    }
    assert not high, LOWER


def test_who_raises_a_row_says_for_what():
    for row in TABLE.rows().values():
        assert row.base >= 0
        assert all(by > 0 and len(why.split()) > 2 for by, why in row.raised)


@pytest.mark.parametrize(
    ("name", "slack"),
    [("long_files", 10), ("long_functions", 5)],
)
def test_what_is_long_does_not_grow(name, slack, now):
    listed, there = TABLE.lists()[name], now.lists()[name]
    assert not there.keys() - listed.keys(), "take something out of it"
    assert not {n: lines for n, lines in there.items() if lines > listed[n]}
    assert not listed.keys() - there.keys(), LOWER
    assert not {n: lines for n, lines in there.items() if lines < listed[n] - slack}, LOWER


@pytest.mark.parametrize("name", ["circles", "named_twice", "untested"])
def test_lists_only_shrink(name, now):
    listed, there = set(TABLE.lists()[name]), set(now.lists()[name])
    assert sorted(there - listed) == [], f"not among {budgets.ABOUT[name]}"
    assert sorted(listed - there) == [], LOWER


def test_few_modules_of_these_rooms_are_shown_by_whole_runs_alone():
    rooms = [name.split(".")[1] for name in TABLE.untested]
    assert sum(room in MANY for room in rooms) <= 40


def test_the_file_is_as_it_is_written():
    assert FILE.read_text() == budgets.written(TABLE)


@pytest.mark.processes
def test_no_base_has_risen_and_no_list_has_grown_since_there_are_budgets():
    """All versions in the clone are compared; outside a clone there are none."""
    place = house.place(FILE)
    hashes = _git("rev-list", "HEAD", "--", place).split()
    before = [budgets.read(_git("show", f"{commit}:{place}")) for commit in hashes]
    for old in before:
        for name, row in TABLE.rows().items():
            # A room that is new has been given all of its lines.
            assert row.base <= (old.rows()[name].base if name in old.rows() else 0), name
        for name, entries in TABLE.lists().items():
            assert len(entries) <= len(old.lists()[name]), name
        for name in ("long_files", "long_functions"):
            assert sum(TABLE.lists()[name].values()) <= sum(old.lists()[name].values())


def _git(*words):
    done = subprocess.run(
        ["git", *words], cwd=house.ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_what_a_row_was_raised_by_goes_before_its_base_falls():
    raised = Row(120, ((5, "the first part"), (15, "the second part")))
    assert raised.base == 100
    assert raised.lowered(130) == raised
    assert raised.lowered(110) == Row(110, ((5, "the first part"), (5, "the second part")))
    assert raised.lowered(103) == Row(103, ((3, "the first part"),))
    assert raised.lowered(90) == Row(90)


def test_what_is_written_is_read_again():
    table = budgets.Budgets(
        {"lines": Row(9)}, {"run": Row(7, ((2, 'says "for"'.replace('"', "'")),))},
        {"a.py": 401}, {}, [["a", "b"]], ["Part"], [],
    )  # fmt: skip
    assert budgets.read(budgets.written(table)) == table


def test_lowering_adds_nothing():
    old = budgets.Budgets(
        {}, {"a": Row(9), "b": Row(5)}, {"f": 500}, {"g": 70}, [], ["X"], ["m"]
    )
    new = budgets.Budgets(
        {}, {"a": Row(4), "b": Row(6), "c": Row(1)}, {"f": 450, "h": 401}, {}, [["a", "b"]],
        ["X", "Y"], [],
    )  # fmt: skip
    assert budgets.lowered(old, new) == budgets.Budgets(
        {}, {"a": Row(4), "b": Row(5)}, {"f": 450}, {}, [], ["X"], []
    )
