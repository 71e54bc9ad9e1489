"""A result is as old as the code that it measures."""

import csv
from pathlib import Path

import pytest

from benchmarks.reproduce import freshness, result
from benchmarks.reproduce.command import (
    as_markdown,
    card,
    keep,
    kept_result,
    known,
    reproduce,
    stale,
)
from benchmarks.reproduce.freshness import (
    PACKAGE,
    WITHOUT_EFFECT,
    changed_since,
    code_of,
    what_runs,
)
from kdlab.report.machine import git_commit

ROOT = Path(__file__).parents[3]
SOURCE = '''"""About it."""

def one(x):
    """Says.

    More.
    """
    # why
    words = """
    # not a comment
    """
    return x + 1  # here
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a package with two parts, `train` and `losses`, in place of kdlab."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "loop.py").write_text(SOURCE)
    (tmp_path / "losses.py").write_text("HARD = 1\n")
    monkeypatch.setattr(freshness, "PACKAGE", tmp_path)
    freshness._hash_of.cache_clear()
    yield tmp_path
    freshness._hash_of.cache_clear()


def measured(value, code):
    return {"rows": [{"measured": value}], "code": code}


def test_only_what_runs_counts():
    words = '    words = """\n    # not a comment\n    """'
    assert what_runs(SOURCE) == f"def one(x):\n{words}\n    return x + 1"
    reworded = SOURCE.replace("Says.", "Adds one.").replace("# why", "# since")
    assert what_runs(reworded.replace("  # here", "")) == what_runs(SOURCE)
    for was, now in (("+ 1", "+ 2"), ("# not", "# no")):
        assert what_runs(SOURCE.replace(was, now)) != what_runs(SOURCE)


def test_parts_that_changed_are_named(package):
    code = code_of(["train", "losses"])
    assert changed_since(measured(1.0, code)) == ()
    for path, text in (
        ("train/loop.py", SOURCE + "\nTWO = 2\n"),
        ("losses.py", "HARD = 2\n"),
    ):
        (package / path).write_text(text)
        freshness._hash_of.cache_clear()
        assert Path(path).parts[0].removesuffix(".py") in changed_since(measured(1.0, code))
    (package / "losses.py").unlink()
    freshness._hash_of.cache_clear()
    assert changed_since(measured(1.0, code)) == ("train", "losses")
    assert changed_since(measured(None, code)) == ()  # nothing was measured
    assert changed_since(measured(1.0, {})) == ("kdlab",)  # before code was recorded
    with pytest.raises(FileNotFoundError):
        code_of(["trains"])


def test_changes_that_moved_no_number_are_followed_one_after_the_other(
    package, tmp_path, monkeypatch
):
    now = code_of(["train"])["train"]
    changes = tmp_path / "without_effect.csv"
    monkeypatch.setattr(freshness, "WITHOUT_EFFECT", changes)

    def stale_after(*hashes):
        lines = [f"train,{was},{then},why,test.py::test" for was, then in hashes]
        changes.write_text("\n".join(["part,was,now,why,shown_by", *lines]))
        return [
            was for was in ("a", "b", "c") if changed_since(measured(1.0, {"train": was}))
        ]

    assert stale_after() == ["a", "b", "c"]
    assert stale_after(("b", now)) == ["a", "c"]
    assert stale_after(("a", "b"), ("b", now)) == ["c"]
    assert stale_after(("b", now), ("a", "b")) == ["a", "c"]  # in their order
    assert stale_after(("a", "b"), ("b", "a"), ("a", now)) == ["c"]  # there and back
    assert changed_since(measured(1.0, {"losses": "a"})) == ("losses",)


def test_each_change_that_moved_no_number_is_needed_and_shown_by_a_test():
    with WITHOUT_EFFECT.open(newline="") as file:
        changes = list(csv.DictReader(file))
    for number, change in enumerate(changes):
        later = [c["was"] for c in changes[number + 1 :] if c["part"] == change["part"]]
        hashes = [*code_of([change["part"]]).values(), *later]
        assert change["now"] in hashes, (
            f"no result needs this line now; remove it: {change}"
        )
        file, _, test = change["shown_by"].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text()
        assert len(change["why"].split()) > 5


@pytest.mark.parametrize("name", sorted(known()))
def test_a_card_names_parts_that_are_there(name):
    spec = card(name)[1]
    assert len(code_of(spec.code)) == len(spec.code)
    assert bool(spec.code) == (spec.measurement is not None)


def test_a_kept_result_says_its_commit():
    for name in result.names():
        facts = kept_result(name)
        if any(row["measured"] is not None for row in facts["rows"]):
            assert len(facts["commit"].removesuffix("-dirty")) == 40
            assert facts["code"], name


def test_an_older_result_is_said_to_be(kdlab_cli):
    older = {facts["name"] for facts in stale()}
    for name in older:
        text = as_markdown(kept_result(name))
        assert "| measured before the code changed |" in text
        assert "changed since: " in text
    code, out, _ = kdlab_cli("reproduce", "--stale")
    assert code == 0
    assert f"{len(older)} kept results are older than their code." in out


def test_simulating_again_leaves_what_was_measured(elsewhere, monkeypatch):
    (simulated,) = reproduce("edl_dist/table3", measures=False, keeps=True)
    place, rows = Path("registry/results").resolve(), card("edl_dist/table3")[1].rows
    facts = simulated.facts() | {"commit": "a" * 40, "code": {"train": "0" * 16}}
    row = next(r for r in facts["rows"] if r["simulated"] is not None)
    row |= {"measured": 2.0, "mean": 2.0, "low": 1.0, "high": 3.0, "simulated": 0.0}
    result.keep(place, facts | {"seconds": 77.0}, rows)
    assert keep(simulated) == place / "rows.csv"
    again = kept_result("edl_dist/table3")
    row = next(r for r in again["rows"] if r["measured"] is not None)
    assert (row["measured"], row["low"], row["high"]) == (2.0, 1.0, 3.0)
    assert row["simulated"] != 0.0
    assert (again["commit"], again["seconds"]) == ("a" * 40, 77.0)
    assert changed_since(again) == ("train",)
    # In a checkout a result is kept in benchmarks/results.
    monkeypatch.setattr("benchmarks.reproduce.command._CHECKOUT", elsewhere.resolve())
    assert keep(simulated) == elsewhere.resolve() / "benchmarks/results/rows.csv"


def test_the_commit_is_that_of_the_checkout():
    commit = git_commit(PACKAGE, marks=True) or ""
    assert len(commit.removesuffix("-dirty")) in (0, 40)
