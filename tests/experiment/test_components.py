"""Components of notebook cells are defined only as the starting process named them."""

import hashlib
import json
import textwrap

import pytest

from kdlab.config import registry
from kdlab.config.home import write_json
from kdlab.errors import BadInput, KdlabError
from kdlab.experiment.components import accept_components
from kdlab.experiment.folder import RunFolder

CELL = textwrap.dedent('''
    from dataclasses import dataclass
    import kdlab
    from kdlab.losses.soft_loss import LossSpec

    @kdlab.register("losses/of_a_run_folder")
    @dataclass(frozen=True, kw_only=True)
    class OfARunFolder(LossSpec):
        """Squares."""
        def soft(self, student, teacher, labels):
            return ((student - teacher.detach()) ** 2).mean()
''')
NAME = "losses/of_a_run_folder"


@pytest.fixture
def folder(tmp_path):
    entry = {"source": CELL, "sha256": "as the folder says, which counts for nothing"}
    write_json(tmp_path / "components.json", {NAME: entry})
    return RunFolder(tmp_path)


def test_what_the_starting_process_named_is_defined(folder, monkeypatch):
    named = {NAME: hashlib.sha256(CELL.encode()).hexdigest()}
    monkeypatch.setenv("KDLAB_COMPONENTS", json.dumps(named))
    accept_components(folder)
    assert registry.find(NAME)[0].__name__ == "OfARunFolder"


@pytest.mark.parametrize("named", [None, {NAME: "0" * 64}, {"losses/other": "0" * 64}])
def test_what_nobody_named_or_was_changed_since_is_not_run(folder, monkeypatch, named):
    """Code that lies in a run's folder is not run, whatever hash stands beside it."""
    if named is None:
        monkeypatch.delenv("KDLAB_COMPONENTS", raising=False)
    else:
        monkeypatch.setenv("KDLAB_COMPONENTS", json.dumps(named))
    folder.path.joinpath("components.json").write_text(
        json.dumps({NAME: {"source": CELL + "raise SystemExit(7)", "sha256": ""}})
    )
    with pytest.raises(BadInput, match="is not run"):
        accept_components(folder)


def test_a_run_of_kdlabs_own_parts_needs_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("KDLAB_COMPONENTS", raising=False)
    accept_components(RunFolder(tmp_path))
    (tmp_path / "components.json").write_text("{torn")
    with pytest.raises(KdlabError, match=r"components\.json"):
        accept_components(RunFolder(tmp_path))
