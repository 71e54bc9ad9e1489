"""Another number of ranks is asked for while a group trains."""

import pytest

from kdlab.errors import BadInput
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.resizing import ask_for_ranks, wanted_ranks

GROUP = {"type": "train/aggregation/all_reduce", "ranks": 3, "least": 2}


def test_what_was_asked_for_last_is_wanted(tmp_path):
    run = RunFolder(tmp_path)
    assert wanted_ranks(run) is None
    for ranks in (2, 6, 4):
        ask_for_ranks(run, {"aggregation": GROUP}, ranks)
        assert wanted_ranks(run) == ranks


@pytest.mark.parametrize("ranks", [1, 7])
def test_a_group_has_a_least_and_a_most(tmp_path, ranks):
    with pytest.raises(BadInput, match=rf"{ranks} ranks .* this run can have 2 to 6"):
        ask_for_ranks(RunFolder(tmp_path), {"aggregation": GROUP}, ranks)
    assert wanted_ranks(RunFolder(tmp_path)) is None


def test_a_student_in_one_process_has_no_ranks(tmp_path):
    spec = {"aggregation": {"type": "train/aggregation/none"}}
    with pytest.raises(BadInput, match="trains one student in one process"):
        ask_for_ranks(RunFolder(tmp_path), spec, 2)
