"""Facts of the finished runs that many tests read: one run of each method."""

import pytest
from finished_runs import MADE_OF

import kdlab


@pytest.mark.processes("whoever is first makes the run that the others read")
@pytest.mark.parametrize("name", MADE_OF)
def test_each_is_finished_and_lost_nothing(finished, name):
    run = finished(name)
    assert run.state == "finished"
    assert kdlab.attach("last").id == run.id
    assert [listed.id for listed in kdlab.runs()] == [run.id]
    result = run.result
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    assert result["tracking_error"] is None
    members = {row["member"] for row in result["runs"]}
    assert {e.member for e in run.events() if e.KIND == "images_answered"} >= members


@pytest.mark.processes("whoever is first makes the run that the others read")
def test_a_copy_may_be_changed_and_the_run_stays(taught, copied):
    run = copied(taught)
    (run.path / "result.json").unlink()
    assert kdlab.attach("last").path == run.path
    assert (taught.path / "result.json").is_file()
    assert not (run.path / "tracking.json").exists()
