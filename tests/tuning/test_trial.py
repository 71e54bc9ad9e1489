"""A trial is a run without a tracker, in a pool that outlives it."""

import pytest
from small_sweeps import TRAINED, searched

from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import made
from kdlab.soft_labels.source import PoolAddress
from kdlab.tuning import trial
from kdlab.tuning.trial import SharedPool, TrialProcess

ADDRESS = PoolAddress(address="tcp://127.0.0.1:9", teacher="t", tls={"ca": "ca.pem"})


@pytest.fixture
def begun(tmp_path):
    """A trial in its folder, before it trains."""

    def begin(pool=None, **tracking):
        tree = searched(TRAINED).space.composed(
            {}, {f"tracking.{key}": value for key, value in tracking.items()}
        )
        run, _ = made(Experiment(tree), "starting", tmp_path / "trial")
        return TrialProcess(run, lambda: False, pool)

    return begin


def test_its_results_go_to_the_mlflow_of_the_sweep(begun):
    assert (
        begun(enabled=True, uri="sqlite:///sweep.db").tracking_uri == "sqlite:///sweep.db"
    )


def test_without_mlflow_it_has_none(begun):
    assert begun(enabled=False, uri="sqlite:///sweep.db").tracking_uri is None


def test_it_neither_follows_its_events_nor_draws(begun):
    process = begun(enabled=True, uri="sqlite:///sweep.db")
    process.track()
    process.draw()
    assert process.tracker.trouble is None
    assert not (process.run.path / "tracking.log").exists()
    assert not list(process.run.path.glob("*.svg"))


def test_the_pool_of_the_sweep_serves_it_and_is_not_closed_by_it(begun, monkeypatch):
    asked = []
    monkeypatch.setattr(
        trial, "status_of", lambda address, tls: asked.append((address, tls)) or "up"
    )
    pool = begun(ADDRESS).pools.whole()
    assert isinstance(pool, SharedPool)
    assert (pool.address, pool.teacher) == (ADDRESS.address, "t")
    assert pool.wait() == "up"
    assert asked == [(ADDRESS.address, {"ca": "ca.pem"})]
    pool.close()  # nothing is asked, and nobody is told
    assert len(asked) == 1


def test_without_one_each_trial_has_its_own():
    assert SharedPool.of(None) is None
