"""`benchmarks/` is found beside the package in a checkout, whoever else has the name."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kdlab.config import evidence, registry, source_index
from kdlab.errors import BadInput
from kdlab.supervision.children import Child

ROOT = Path(__file__).parents[2]


@pytest.fixture
def another(elsewhere, monkeypatch):
    """A folder `benchmarks` of somebody else's project, which is the current folder."""
    (elsewhere / "benchmarks").mkdir()
    (elsewhere / "benchmarks" / "__init__.py").write_text("")
    (elsewhere / "benchmarks" / "child.py").write_text("raise SystemExit('another one')")
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])
    for name in [n for n in sys.modules if n.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    return elsewhere


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An installed wheel, with another package `benchmarks` beside it."""
    for place in ("kdlab/_packaged", "benchmarks/reproduce"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "benchmarks" / "__init__.py").write_text("")
    text = '@register("losses/mine")\nclass Mine: pass\n'
    (tmp_path / "benchmarks" / "reproduce" / "mine.py").write_text(text)
    monkeypatch.setattr(evidence, "_PACKAGE", tmp_path / "kdlab")
    source_index.index.cache_clear()
    yield tmp_path
    source_index.index.cache_clear()


def test_a_checkout_has_it():
    assert evidence.folder() == ROOT / "benchmarks"
    assert registry.find("reproduce/table")[0].__module__ == "benchmarks.reproduce.table"


def test_a_module_is_the_checkouts_whatever_the_current_folder_has(another):
    assert evidence.module("benchmarks.slices").__file__ == str(
        ROOT / "benchmarks/slices.py"
    )


@pytest.mark.processes("a Python with torch")
def test_so_is_that_of_a_child(another, tmp_path):
    call = {"function": "benchmarks.peer_loops:written", "arguments": {}}
    child = Child("benchmarks.child", call, tmp_path / "log")
    try:
        assert child.answer(120)["done"]["kdlab"] > 1
    finally:
        child.stop()


def test_a_wheel_has_none_and_takes_no_other(wheel):
    assert evidence.folder() is None
    assert not [e for e in source_index.index() if e.module.startswith("benchmarks")]


@pytest.mark.parametrize(
    "words", [["bench", "transport"], ["reproduce"], ["reproduce", "x"]]
)
def test_a_wheel_says_in_a_line_where_they_are(wheel, kdlab_cli, words):
    code, out, err = kdlab_cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"at version {version('kdlab')} and run `pip install -e .` there" in err
    with pytest.raises(BadInput, match="without benchmarks/"):
        evidence.module("benchmarks.transport")
