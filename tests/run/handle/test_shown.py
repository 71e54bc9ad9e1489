"""Results, plans and lists of runs, as users see them: from folders written by hand."""

import time

import pytest

from kdlab.config.home import write_json
from kdlab.errors import NotFoundError
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.plans import PlanSheet, plans
from kdlab.run.handle.result import Result
from kdlab.run.handle.run import Run
from kdlab.run.handle.run_list import RunList

ROW = {"source": "served", "seed": 0, "student_top1": 91.25, "samples_lost": 0}


def run(root, name, **status):
    folder = RunFolder(root / name)
    folder.path.mkdir()
    write_json(folder.path / "experiment.json", {"experiment": "mine", "spec_hash": "abc"})
    folder.write_status(**({"created": 1_700_000_000.0} | status))
    return Run(folder)


# Results


def test_a_result_shows_its_members_and_facts_and_no_empty_column():
    shown = Result(
        runs=[ROW, ROW | {"seed": 1}], run_id="a", student_top1=91.25
    )._repr_html_()
    assert "EDL-Dist (served teachers), seed 1" in shown
    assert "91.25" in shown
    assert "samples_lost" in shown  # 0 is a figure
    assert "wall_seconds" not in shown  # of no member
    assert shown.count("<table") == 2


def test_costs_are_a_table_of_their_own():
    costs = {
        "student": {
            "parameters": 1234.0,
            "megabytes": 1.0,
            "gflops": 1.0,
            "latency_ms": 1.0,
        }
    }
    shown = Result(runs=[ROW], costs=costs)._repr_html_()
    assert shown.count("<table") == 2  # no facts
    assert "<h3>Costs</h3>" in shown
    assert "1,234" in shown


def test_the_result_of_a_sweep_of_none_is_shown_all_the_same():
    assert "finished" in Result(status="finished", runs=None)._repr_html_()


def test_what_a_source_is_called_is_text():
    shown = Result(runs=[ROW | {"source": "<b>mine"}])._repr_html_()
    assert "<b>mine" not in shown


# Plans


def planned(folder, member, table, *, drawn=False):
    where = folder.path / "members" / member
    where.mkdir(parents=True)
    write_json(where / "plan.json", {"table": table})
    if drawn:
        (where / "gantt.svg").write_text("<svg/>")


def test_plans_are_those_of_all_members(tmp_path):
    folder = RunFolder(tmp_path)
    planned(folder, "tr/seed1", "0: a & b")
    planned(folder, "tr/seed0", "0: c", drawn=True)
    sheets = plans(folder)
    assert [(p.member, p.table, p.gantt is None) for p in sheets] == [
        ("tr/seed0", "0: c", False), ("tr/seed1", "0: a & b", True)
    ]  # fmt: skip
    shown = sheets._repr_html_()
    assert "a &amp; b" in shown
    assert shown.count("<img") == 1
    assert Run(folder).plans() == sheets


def test_a_plan_is_its_table_in_a_terminal():
    assert repr(PlanSheet("tr/seed0", "0: c", None)) == "tr/seed0\n0: c"


def test_a_run_without_a_plan_says_which_would_have_one(tmp_path):
    with pytest.raises(NotFoundError, match="only a pipeline of blocks makes one"):
        plans(RunFolder(tmp_path))


# Lists


def test_a_list_has_a_row_for_each_run(tmp_path):
    finished = run(
        tmp_path, "one", state="finished",
        result={"student_top1": 91.256, "wall_seconds": 12.6},
    )  # fmt: skip
    stopped = run(tmp_path, "two", state="stopped")
    shown = repr(RunList([finished, stopped])).splitlines()
    assert shown[0].split("  ")[0] == "run"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(1_700_000_000.0))
    cells = [[cell for cell in line.split("  ") if cell] for line in shown[1:]]
    assert [[c.strip() for c in row] for row in cells] == [
        ["one", "mine", "finished", started, "91.26", "13"],
        ["two", "mine", "stopped", started, "-", "-"],
    ]


def test_what_mlflow_lacks_and_what_cannot_be_read_stands_below(tmp_path):
    late = run(tmp_path, "late", state="finished", result={}, tracking="<MLflow> is slow")
    odd = run(tmp_path, "odd", state="running")
    (odd.path / "status.json").write_text("{")
    (odd.path / "experiment.json").write_text("[")
    run_list = RunList([late, odd])
    lines = repr(run_list).splitlines()
    assert lines[-2] == "late: <MLflow> is slow"
    assert lines[-1].startswith("odd: status.json in")
    assert "unreadable" in lines[-3]
    assert "&lt;MLflow&gt; is slow" in run_list._repr_html_()


def test_a_list_as_json_has_what_scripts_ask_for(tmp_path):
    finished = run(
        tmp_path, "one", state="finished",
        result={"student_top1": 91.2, "wall_seconds": 12.6},
    )  # fmt: skip
    failed = run(tmp_path, "two", state="failed")
    first, second = RunList([finished, failed]).to_json()
    assert first == {
        "run_id": "one", "experiment": "mine", "state": "finished",
        "created": 1_700_000_000.0, "run_dir": str(finished.path), "student_top1": 91.2,
        "wall_seconds": 12.6, "tags": (), "note": "", "archived": False,
    }  # fmt: skip
    assert (second["state"], second["student_top1"]) == ("failed", None)


def test_an_empty_list_says_how_to_get_a_run():
    assert repr(RunList()) == RunList()._repr_html_()
    assert "kdlab run quickstart" in repr(RunList())
    assert RunList().to_json() == []


def test_a_run_shows_itself(tmp_path):
    finished = run(
        tmp_path, "one", state="finished", result={"student_top1": 91.2, "runs": [ROW]}
    )
    assert repr(finished) == "Run(one, mine, finished)"
    shown = finished._repr_html_()
    assert "<strong>Run one</strong>" in shown
    assert ">finished<" in shown
    assert "mine, spec abc" in shown
    assert "91.2" in shown
