"""Twenty runs started at the same moment on one machine: each comes to its end."""

import pytest

import kdlab

pytestmark = pytest.mark.slow
KINDS = ["smoke/none", "smoke/in_process", "smoke/served", "smoke/none", "smoke/blockwise"]


@pytest.mark.timeout(2400)
def test_twenty_runs_started_at_once_all_finish(kdlab_home, elsewhere):
    runs = [kdlab.load(KINDS[k % len(KINDS)]).start(lambda line: None) for k in range(20)]
    for run in runs:
        run.wait(timeout_s=2000)
    ends = {run.id: (run.state, run.status.error) for run in runs}
    assert set(ends.values()) == {("finished", None)}, ends
    for run in runs:
        assert run.status.tracking is None  # twenty writers of one MLflow store
