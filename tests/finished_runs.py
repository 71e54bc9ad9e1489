"""Runs that are finished once in a session, for all tests that only read what a run left.

Whichever process of tests comes first makes a run, the others wait for it and read:

    def test_of_a_reader(taught):
        assert taught.state == "finished"

A reader finds `kdlab.attach("last")`, `kdlab runs` and the teachers' weights as it would beside
the run, and leaves the run as it was: that is checked. Who writes takes a copy: `copied(taught)`.
"""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

# A config and what is set in it; what is tracked is in one store for all.
MADE_OF = {
    "taught": (
        "smoke/in_process",
        {"compare": ["none", "in_process"], "tracking.enabled": True},
    ),
    "of_two_seeds": (
        "smoke/none",
        {
            "seeds": [0, 1],
            "about": "Loss <b>low</b> | high",
            "tracking.enabled": True,
        },
    ),
    "of_another_rate": ("smoke/none", {"train.lr": 0.2, "tracking.enabled": True}),
    "of_blocks": ("smoke/blockwise", {}),
    "of_local_models": (
        "smoke/ensemble",
        {
            "method.workers": 2,
            "method.compare": {
                "e_dnn": {"aggregation": {"type": "train/aggregation/none"}},
                "ma_dnn": {
                    "aggregation": {"type": "train/aggregation/model_average", "tau": 4}
                },
            },
            "train.epochs": 2,
        },
    ),
}


@dataclass(frozen=True, slots=True)
class FinishedRuns:
    """All runs of a session: each in its own folder, prepared files beside them."""

    folder: Path

    @property
    def home(self):
        return self.folder / "home"

    def runs(self, name):
        return self.folder / name / "runs"

    def finished(self, name):
        """The run of this name, made now unless somebody has made it."""
        from kdlab.config.home import locked
        from kdlab.run import load
        from kdlab.run.handle.run import attach

        config, options = MADE_OF[name]
        done = self.folder / name / "done"
        with locked(self.folder / f"{name}.lock"), self._entered(name):
            if not done.exists():
                store = {"tracking.uri": f"sqlite:///{self.folder / 'mlflow.db'}"}
                run = load(config, options | store).start(lambda line: None)
                run.wait(timeout_s=1200)
                done.write_text(run.state)
            run = attach("last")
            assert run.state == "finished", f"{run.state}: {run.status.error}"
            return run

    @contextlib.contextmanager
    def _entered(self, name):
        """Enter a folder with nothing in it but this run."""
        self.runs(name).mkdir(parents=True, exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KDLAB_HOME", str(self.home))
            patch.setenv("KDLAB_RUNS", str(self.runs(name)))
            patch.chdir(self.folder / name)
            yield


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory):
    """Beside the folders of the processes of tests, so that they share them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return FinishedRuns(shared / "finished")


@pytest.fixture
def finished(finished_runs, elsewhere, monkeypatch):
    """Gives finished runs by name; each must be afterwards what it was before."""
    before = {}

    def by_name(name):
        run = finished_runs.finished(name)
        monkeypatch.setenv("KDLAB_HOME", str(finished_runs.home))
        monkeypatch.setenv("KDLAB_RUNS", str(finished_runs.runs(name)))
        before[run.path] = _stamps(run.path)
        return run

    yield by_name
    for path, stamps in before.items():
        assert _stamps(path) == stamps, f"a reader has changed {path}: take a copy"


def _stamps(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def copied(elsewhere, monkeypatch):
    """A copy of a finished run that may be changed, below the current folder.

    MLflow does not know it: the run's own place there is no copy.
    """
    from kdlab.experiment.folder import RunFolder
    from kdlab.run.handle.run import Run

    def copy(run):
        monkeypatch.delenv("KDLAB_RUNS", raising=False)
        target = elsewhere / "runs" / run.id
        shutil.copytree(run.path, target, ignore=shutil.ignore_patterns("tracking.*"))
        return Run(RunFolder(target))

    return copy


@pytest.fixture
def taught(finished):
    """Two students, `none/seed0` and `in_process/seed0`, with a teacher; MLflow knows them."""
    return finished("taught")


@pytest.fixture
def of_two_seeds(finished):
    """One student twice, without a teacher."""
    return finished("of_two_seeds")


@pytest.fixture
def of_another_rate(finished):
    """One student without a teacher, with another learning rate than `of_two_seeds`."""
    return finished("of_another_rate")


@pytest.fixture
def of_blocks(finished):
    """A student that was distilled in blocks by two ranks."""
    return finished("of_blocks")


@pytest.fixture
def of_local_models(finished):
    """Two methods of an ensemble, each with two local models."""
    return finished("of_local_models")
