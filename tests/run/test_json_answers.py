"""`--json` ends stdout with an object whose keys docs/json.md names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests_support import documented


@pytest.mark.long
def test_what_there_is(kdlab_home, elsewhere, answer):
    listing = answer("list", "losses")
    assert set(listing) == {"kinds"} <= documented("kdlab list")
    assert {"how", "name", "about"} == set(listing["kinds"]["losses"][0])
    shown = answer("show", "smoke/none", "train.epochs=3")
    assert set(shown) == documented("kdlab show CONFIG")
    assert shown["spec"]["train"]["epochs"] == 3
    card = answer("show", "losses/hinton")
    assert set(card) == documented("kdlab show CARD")
    assert {"field": "temperature", "default": "4.0", "range": "> 0"} in card["rows"]
    assert "name" in answer("show", "sweeps/quickstart")
    sheet = answer("data", "data/digits")
    assert set(sheet) <= documented("kdlab data NAME --json")
    assert sum(row["train"] for row in sheet["classes"].values()) > 1000


@pytest.mark.processes("whoever is first makes the runs that all read")
def test_what_is_made_of_a_run(of_another_rate, answer, tmp_path):
    run = of_another_rate
    result = answer("attach", run.id)
    assert result["run_id"] == run.id
    assert documented("kdlab run CONFIG --json") <= set(result)  # it is the same answer
    (row,) = answer("runs")["runs"]
    assert set(row) | {"runs"} == documented("kdlab runs --json")
    assert row["student_top1"] == result["student_top1"]
    examination = answer("examine", run.id, "--out", str(tmp_path / "page.html"))
    assert set(examination) <= documented("kdlab examine")
    exported = answer("export", run.id, "--out", str(tmp_path / "s.safetensors"))
    assert Path(exported["written"]).is_file()


@pytest.mark.processes("whoever is first makes the runs that all read")
def test_what_two_runs_differ_in(of_two_seeds, of_another_rate, copied, answer):
    first, second = copied(of_two_seeds), copied(of_another_rate)
    assert answer("control", first.id, "set")["run_id"] == first.id
    both = answer("runs", "--compare", first.id, second.id)
    assert set(both) == documented("kdlab runs --compare")
    assert "train.lr" in both["differences"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("kdlab run clot", "clothes/quickstart"),
        ("kdlab show losses/hin", "losses/hinton"),
        ("kdlab sweep quick", "quickstart"),
        ("kdlab exa", "examine"),
        ("kdlab attach la", "last"),
    ],
)
def test_the_shell_completes(kdlab_home, elsewhere, tmp_path, typed, offered):
    out = tmp_path / "offered"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "COMP_LINE": typed,
        "COMP_POINT": str(len(typed)),
        "COMP_TYPE": "9",
    }
    subprocess.run([sys.executable, "-m", "kdlab"], env=os.environ | asked, check=False)
    assert offered in [word.strip() for word in re.split(r"[\v\n\x0b]", out.read_text())]
