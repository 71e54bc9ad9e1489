"""A component of a notebook cell travels as text with a hash, definitions only."""

import linecache
import subprocess
import sys
import textwrap

import pytest

from kdlab.cluster.notebook_components import (
    define_components,
    definitions,
    package_components,
)
from kdlab.config import registry
from kdlab.errors import BadInput

CELL = textwrap.dedent('''
    %matplotlib inline
    from dataclasses import dataclass
    import kdlab
    from kdlab.losses.soft_loss import LossSpec
    FACTOR = 3.0
    print("a statement that must not travel")
    exp = undefined_name.start()

    @kdlab.register("losses/from_cell")
    @dataclass(frozen=True, kw_only=True)
    class FromCell(LossSpec):
        """Squares."""
        def soft(self, student, teacher, labels):
            return FACTOR * ((student - teacher.detach()) ** 2).mean()
''')


def run_cell(monkeypatch):
    """Define the cell as a notebook does: text in linecache, module __main__."""
    file = "<ipython-input-7>"
    text = definitions(CELL)
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), {"__name__": "__main__"})


def test_definitions_travel_and_statements_stay():
    text = definitions(CELL)
    assert "print" not in text
    assert "undefined_name" not in text
    assert "FACTOR = 3.0" in text
    assert "class FromCell" in text


@pytest.mark.processes
def test_another_process_gets_the_same_component(monkeypatch):
    run_cell(monkeypatch)
    try:
        packed = package_components({"losses/from_cell", "losses/hinton"})
        assert set(packed) == {"losses/from_cell"}  # built-in ones are imported there
        code = (
            f"from kdlab.cluster.notebook_components import define_components, package_components\n"
            f"define_components({packed!r})\n"
            "from kdlab.config import registry\n"
            "import torch\n"
            "loss = registry.find('losses/from_cell')[0]()\n"
            "print(float(loss.soft(torch.ones(2, 3), torch.zeros(2, 3), None)))\n"
            f"print(package_components({{'losses/from_cell'}}) == {packed!r})\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["3.0", "True"]
    finally:
        registry._registered.pop("losses/from_cell")


def test_changed_text_is_not_run(tmp_path):
    source = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    with pytest.raises(BadInput, match="changed after the run started"):
        define_components({"losses/x": {"source": source, "sha256": "0" * 64}})
    assert not (tmp_path / "ran").exists()


def test_a_cell_that_does_not_stand_alone_is_explained():
    import hashlib

    source = "class A(NotImportedHere): pass\n"
    digest = hashlib.sha256(source.encode()).hexdigest()
    with pytest.raises(BadInput, match="hold its own imports"):
        define_components({"losses/x": {"source": source, "sha256": digest}})
