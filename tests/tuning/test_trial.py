"""A trial is a run without a tracker, in a pool that outlives it."""

import pytest
from small_sweeps import TRAINED, searched

from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import create_folder
from kdlab.run.process.run_process import RunProcess
from kdlab.soft_labels.source import PoolAddress

ADDRESS = PoolAddress(address="tcp://127.0.0.1:9", teacher="t", tls={"ca": "ca.pem"})


@pytest.fixture
def begun(tmp_path):
    """A trial in its folder, before it trains."""

    def begin(pool=None, **tracking):
        tree = searched(TRAINED).space.composed(
            {}, {f"tracking.{key}": value for key, value in tracking.items()}
        )
        run, _ = create_folder(Experiment(tree), "starting", tmp_path / "trial")
        return RunProcess(run, lambda: False, pool, tracks=False)

    return begin


def test_its_results_go_to_the_mlflow_of_the_sweep(begun):
    assert (
        begun(enabled=True, uri="sqlite:///sweep.db").tracking_uri == "sqlite:///sweep.db"
    )


def test_without_mlflow_it_has_none(begun):
    assert begun(enabled=False, uri="sqlite:///sweep.db").tracking_uri is None


def test_it_neither_follows_its_events_nor_draws(begun):
    process = begun(enabled=True, uri="sqlite:///sweep.db")
    process._announce()
    process.end("finished")
    assert process.tracker.so_far is None
    assert not (process.run.path / "tracking.log").exists()
    assert not (process.run.path / "overview.html").exists()


def test_the_pool_of_the_sweep_serves_it_and_is_not_closed_by_it(begun):
    process = begun(ADDRESS)
    assert process.pools.teacher_pool() is ADDRESS
    process.pools.close()  # sends nothing to the pool
