"""A fourth method as in docs/own_method.md: a separate package, without a change in kdlab."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests_support import run_folders

PAGE = Path(__file__).parents[2] / "docs" / "own_method.md"


def block(language):
    (source,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return source


@pytest.fixture
def package(tmp_path, elsewhere, monkeypatch):
    """Installed as pip would, and the experiment beside it."""
    place = tmp_path / "site"
    info = place / "born_again-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "born_again.py").write_text(block("python"))
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: born_again\nVersion: 1.0\n"
    )
    line = block("toml").splitlines()[1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[kdlab.components]\n{line}\n")
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
    (elsewhere / "configs").mkdir()
    (elsewhere / "configs" / "again.yaml").write_text(block("yaml"))
    return elsewhere


def kdlab(*words):
    command = [sys.executable, "-m", "kdlab", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def events(folder, kind):
    (run,) = run_folders(folder)
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_it_imports_from_one_place():
    """The page imports only this module of kdlab, and each name that it offers exists."""
    from kdlab.methods import api

    imports = re.findall(r"^(?:from|import) (kdlab\S*)", block("python"), re.M)
    assert imports == ["kdlab.methods.api"]
    assert all(hasattr(api, name) for name in api.__all__)


@pytest.mark.processes("a package of its own, and a run of it")
def test_it_runs_by_its_name(kdlab_home, package):
    done = kdlab("run", "again", "tracking.enabled=false", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["method"] == "mine/born_again"
    assert not [line for line in done.stderr.splitlines() if line.startswith("warning")]
    table = done.stderr[done.stderr.index("top-1 %  best-on-val") :]
    assert "\nborn_again " in table
    assert "no teacher" not in table
    tops = [event["top1"] for event in events(package, "generation_done")]
    assert len(tops) == 2
    assert result["student_top1"] == tops[-1]  # the last one is the result
    # Each generation starts from the same weights; the second has another teacher: labels.
    (run,) = run_folders(package)
    first, second = (
        (run / f"members/born_again/seed0/generation-{k}/student.safetensors").read_bytes()
        for k in range(2)
    )
    assert first != second


@pytest.mark.processes
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.generations=0", "must be >= 1"),
        ("method.generation=2", "generations"),  # the nearest name
        ("soft_labels.type=soft_labels/in_process", "come from the student before"),
    ],
)
def test_its_faults_are_found_before_anything_starts(package, override, message):
    done = kdlab("run", "again", override)
    assert done.returncode == 2
    assert message in done.stderr
    assert not run_folders(package)


@pytest.mark.processes
def test_an_old_name_says_the_new_one(elsewhere):
    done = kdlab("run", "smoke/none", "method={type: train/student}")
    assert done.returncode == 2
    assert "'train/student' is called 'methods/student'" in done.stderr
