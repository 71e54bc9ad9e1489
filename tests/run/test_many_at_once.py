"""Twenty runs started at the same moment on one machine: each comes to its end."""

import json

import pytest

import kdlab
from kdlab.run.outputs.tracking_sync import sync_all

pytestmark = pytest.mark.nightly
KINDS = ["smoke/none", "smoke/in_process", "smoke/served", "smoke/none", "smoke/blockwise"]


@pytest.mark.timeout(2400)
def test_twenty_runs_started_at_once_all_finish(kdlab_home, elsewhere):
    runs = [
        kdlab.load(kind, "tracking.enabled=true").start(lambda line: None)
        for kind in KINDS * 4
    ]
    for run in runs:
        run.wait(timeout_s=2000)
    ends = {run.id: (run.state, run.status.error) for run in runs}
    assert set(ends.values()) == {("finished", None)}, ends
    # Twenty writers of one MLflow store; one that was too slow has been said, and is made up for.
    sync_all()
    assert sync_all() == "MLflow has everything."
    for run in runs:
        tracking = json.loads((run.path / "tracking.json").read_text())
        assert tracking["done"]
        assert all(tracking["runs"].values())
