"""A rank of a student: how it follows an order, and how two ranks share one batch."""

import threading
from dataclasses import replace

import pytest
import torch
import yaml
from threaded_ranks import worlds_of_threads

import kdlab
from kdlab.events.log import read_all
from kdlab.experiment.folder import RunFolder
from kdlab.methods.student.rank import Rank
from kdlab.supervision.rank_messages import GenerationOrder
from kdlab.train import checkpoint
from kdlab.train.aggregation.ranks import GenerationEnds, Ranks
from kdlab.train.student_job import StudentFacts

MEMBER = "none/seed0"


@pytest.fixture
def run(elsewhere, tmp_path):
    """Make the folder of a run: `run(*overrides)`."""

    def make_run(*words, name="a"):
        experiment = kdlab.load(
            "smoke/none",
            "aggregation.type=train/aggregation/all_reduce",
            "student={type: models/patch_net, patch: 2}",
            "train.epochs=2", "train.batch=48", "train.evaluate_every=1000",
            "train.log_every_steps=1", "train.checkpoint_every_steps=4", *words,
        )  # fmt: skip
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        (folder.path / "spec.yaml").write_text(yaml.safe_dump(experiment.resolved))
        folder.write_origin("smoke/none", experiment.hash)
        folder.write_status(created=0.0)
        return folder

    return make_run


def order(tmp_path, generation=1, world=1, rank=0, **more):
    return GenerationOrder(
        generation=generation, world=world, rank=rank, local_rank=rank,
        local_world=world, meet_at=f"file://{tmp_path}/meet{generation}", secret="s",
        names=tuple(f"p{k}" for k in range(world)), **more,
    )  # fmt: skip


def losses(folder):
    return {e.step: e.loss for e in read_all(folder.events) if e.KIND == "step_logged"}


def group(folder, tmp_path, generation=1, world=2, beat=lambda rank, step: None):
    """Run a generation of several ranks in threads; return the result or error of each."""
    ranks = [Rank(folder, MEMBER, lambda g, step, r=r: beat(r, step)) for r in range(world)]
    for member in ranks:
        member.warm_up()
        member.rate = 100.0 * (1 + ranks.index(member))
    results = {}

    def live(r):
        try:
            results[r] = ranks[r].generation(order(tmp_path, generation, world, r))
        except BaseException as error:
            results[r] = error

    with worlds_of_threads():
        threads = [threading.Thread(target=live, args=(r,)) for r in range(world)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    return results


@pytest.mark.long
def test_a_rank_alone_needs_no_group_and_says_that_it_lives(run, tmp_path):
    beats = []
    rank = Rank(run(), MEMBER, lambda generation, step: beats.append((generation, step)))
    rank.saving = True  # of a generation before
    result = rank.generation(order(tmp_path, generation=3))
    assert result.epochs == 2
    assert (result.lost, result.repeated, result.seen) == (0, 0, 480)
    assert beats[0] == (3, 0)
    assert beats[-1] == (3, 10)


@pytest.mark.long
def test_asked_to_leave_it_saves_and_another_goes_on(run, tmp_path):
    quiet, folder = run(), run(name="b")
    Rank(quiet, MEMBER, lambda *beat: None).generation(order(tmp_path))

    def beat(generation, step):
        rank.leaving = step >= 5

    rank = Rank(folder, MEMBER, beat)
    with pytest.raises(GenerationEnds):
        rank.generation(order(tmp_path))
    checkpoints = folder.member(MEMBER) / "checkpoints"
    saved = checkpoint.load_newest(checkpoints, rank.hash, StudentFacts)
    assert saved.facts.position.step == 5
    successor = Rank(folder, MEMBER, lambda *beat: None)
    successor.generation(order(tmp_path, generation=2))
    assert losses(folder) == losses(quiet)


def test_two_ranks_cut_a_batch_and_only_the_first_has_a_result(run, tmp_path):
    folder = run("aggregation.shares=measured")
    results = group(folder, tmp_path)
    assert results[1] is None
    assert (results[0].lost, results[0].repeated, results[0].seen) == (0, 0, 480)
    (shared,) = (e for e in read_all(folder.events) if e.KIND == "batch_shared")
    assert shared.rows == [16, 32]  # as fast as they are
    checkpoints = folder.member(MEMBER) / "checkpoints"
    rank = Rank(folder, MEMBER, lambda *beat: None)
    facts = checkpoint.load_newest(checkpoints, rank.hash, StudentFacts)
    assert facts.facts.shares == {"p0": 100.0, "p1": 200.0}
    # The same ranks keep their shares; with another rank, all are measured.
    ranks = type("Two", (Ranks,), {"world": 2, "gather": lambda self, rate: [rate, rate]})()
    assert rank._shares(ranks, torch.device("cpu"), facts, ("p1", "p0")) == (200.0, 100.0)
    rank.rate = 7.0
    assert rank._shares(ranks, torch.device("cpu"), facts, ("p0", "p5")) == (7.0, 7.0)
    assert rank._shares(Ranks(), torch.device("cpu"), facts, ("p0",)) == (1.0,)


def test_a_rate_that_grows_with_the_ranks(run):
    def rank(name, **how):
        configured = Rank(run(name=name), MEMBER, lambda *beat: None)
        configured.aggregation = replace(configured.aggregation, ranks=2, **how)
        return configured

    scaled = rank("a", on_size_change="scale_lr")
    assert [scaled.lr_scale(world) for world in (1, 2, 4)] == [0.5, 1.0, 2.0]
    constant = rank("b", backend="nccl")
    assert constant.lr_scale(4) == 1.0
    assert constant.backend(torch.device("cpu"), 1) == "nccl"  # as it was told
    assert scaled.backend(torch.device("cpu"), 1) == "gloo"


def test_a_source_that_waits_is_alive_and_learns_of_a_stop(run):
    beats, stop = [], []
    rank = Rank(run(), MEMBER, lambda *beat: beats.append(beat), lambda: bool(stop))
    assert not rank._waits(2, 31)
    stop.append("asked")
    assert rank._waits(2, 31)
    assert beats == [(2, 31)] * 2
