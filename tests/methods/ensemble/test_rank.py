"""A worker's rank without its process: the orders it gets, and what it creates only once."""

import time

import pytest

import kdlab
from kdlab.codec import from_builtins, to_builtins
from kdlab.config import yaml_text
from kdlab.errors import RunStopped
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.model_workers import RoundOrder, RoundReport
from kdlab.methods.ensemble.rank import LocalModelRank
from kdlab.soft_labels.source import PoolAddress


@pytest.fixture
def run(tmp_path):
    """The folder of a run of two workers that average after three iterations each."""
    spec = kdlab.load(
        "smoke/ensemble",
        "method.compare={}",
        "method.workers=2",
        "aggregation={type: train/aggregation/model_average, tau: 3}",
        "train.epochs=1",
    ).spec
    folder = RunFolder(tmp_path / "r1")
    folder.path.mkdir()
    folder.path.joinpath("spec.yaml").write_text(yaml_text.dump(spec.to_dict()))
    folder.write_status(state="running", created=time.time())
    folder.write_origin("small", "hash")
    return folder


@pytest.fixture
def beats():
    return []


@pytest.fixture
def rank(run, beats):
    return LocalModelRank(run, "ma_dnn/seed0", lambda *about: beats.append(about))


def order(rank, what, worker=0, number=0, **rest):
    round_ = rank._ensemble_run.timetable.rounds[number]
    models = rest.pop("models", ())
    message = RoundOrder(what=what, worker=worker, round=round_, models=models, **rest)
    return from_builtins(RoundOrder, to_builtins(message))  # as it comes through a pipe


def test_it_carries_out_the_rounds_of_its_worker(rank, run):
    trained = rank.generation(order(rank, "train"))
    assert (trained.worker, trained.what, trained.done.steps) == (0, "train", 3)
    assert trained.train_loss is None
    averaged = rank.generation(order(rank, "combine", models=(trained.done.model,)))
    assert averaged.done.fetched_bytes == 0  # it was the only one
    last = rank.generation(order(rank, "train", number=1, final=True))
    assert last.train_loss > 0
    assert from_builtins(RoundReport, to_builtins(last)) == last
    lines = [e.worker for e in select(run.events, "local_step")]
    assert set(lines) <= {0}


def test_signs_of_life_have_its_steps(rank, beats):
    rank.generation(order(rank, "train"))
    assert {generation for generation, _ in beats} == {1}
    assert [step for _, step in beats][-1] == 3


def test_worker_and_source_are_made_once(rank, monkeypatch):
    calls = []
    for name in ("worker", "source"):
        really = getattr(EnsembleRun, name)

        def counted(self, *about, _name=name, _really=really):
            calls.append((_name, about))
            return _really(self, *about)

        monkeypatch.setattr(EnsembleRun, name, counted)
    trained = rank.generation(order(rank, "train"))
    rank.generation(order(rank, "combine", models=(trained.done.model,)))
    assert [name for name, _ in calls] == ["worker", "source"]


def test_the_source_learns_of_the_pool_and_of_stops(rank, beats, monkeypatch):
    asked = []
    monkeypatch.setattr(
        EnsembleRun, "source", lambda self, *about: asked.append(about) or None
    )
    monkeypatch.setattr("kdlab.methods.ensemble.rank.execute", lambda *about: about)
    labels = PoolAddress("tcp://127.0.0.1:1", "teacher-1", None)
    rank.generation(order(rank, "train", labels=labels))
    ((worker, run_id, pool, waits),) = asked
    assert (run_id, pool) == ("r1", labels)
    beats.clear()
    worker.sgd.steps = 4
    assert waits() is False
    assert beats == [(1, 4)]  # who waits for labels is alive
    rank.stopping = True
    assert waits() is True


def test_one_that_comes_back_goes_on_with_what_it_left(rank, run, beats):
    trained = rank.generation(order(rank, "train"))
    combined = rank.generation(order(rank, "combine", models=(trained.done.model,)))
    again = LocalModelRank(run, "ma_dnn/seed0", lambda *about: None)
    models = (combined.done.model,)
    report = again.generation(order(again, "train", number=1, models=models))
    assert report.done.model.sha256 == (
        rank.generation(order(rank, "train", number=1, models=models)).done.model.sha256
    )
    (resumed,) = select(run.events, "worker_resumed")
    assert resumed.step == 3


def test_what_was_done_in_vain_is_counted(rank, run):
    """No step of the round was saved, so three are repeated; a published model is not."""
    trained = rank.generation(order(rank, "train"))
    again = LocalModelRank(run, "ma_dnn/seed0", lambda *about: None)
    trained = again.generation(order(again, "train"))
    assert again._worker.sgd.odometer.undone == 3
    after = LocalModelRank(run, "ma_dnn/seed0", lambda *about: None)
    after.generation(order(after, "combine", models=(trained.done.model,)))
    assert after._worker.sgd.odometer.undone == 3  # it was published: nothing is done again
    assert after._worker.sgd.steps == 3


def test_a_stop_is_said_after_the_state_is_kept(rank, run):
    rank.stopping = True
    with pytest.raises(RunStopped, match="after step 1"):
        rank.generation(order(rank, "train"))
    assert list(rank.folder.glob("worker-0/checkpoints/*"))
