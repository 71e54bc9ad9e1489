"""SGD of one local model: what its steps depend on, what counts as time, what it leaves."""

import math
import re
from dataclasses import replace
from functools import partial
from threading import Event

import numpy as np
import pytest
import torch
from local_models import Case, apart
from torch.nn.functional import cross_entropy

from kdlab.changes.change import (
    CONTROL,
    GoOn,
    Pause,
    SaveCheckpoint,
    SetValues,
    append,
)
from kdlab.changes.queue import ChangeQueue
from kdlab.errors import Diverged, RunStopped
from kdlab.losses.hinton import Hinton
from kdlab.methods.ensemble.exchange import (
    fetch,
    keep_momentum,
    publish,
    take_momentum,
)
from kdlab.methods.ensemble.local_job import UnitCosts
from kdlab.methods.ensemble.local_sgd import LocalSgd
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.aggregation.muloco import MuLoCo
from kdlab.train.aggregation.none import NoAggregation


@pytest.fixture
def case(digits, tmp_path):
    """Two workers with eight iterations each."""
    table = RoundSchedule(iterations=8, tau=None)
    return Case(digits, tmp_path, NoAggregation(), table, 2, schedule="cosine")


def sgd_of(case, worker=0, **fields):
    return LocalSgd(replace(case.make(worker).job, **fields))


def batches(sgd, count):
    source = NoTeacherSource(sgd.job.samples)
    stream = iter(source.epoch(0, ()))
    return [next(stream) for _ in range(count)]


class Lossy:
    """A loss that remembers each step's value."""

    def __init__(self):
        self.seen = []

    def __call__(self, scores, hard, rows):
        self.seen.append(float(hard.detach()))
        return hard


def test_a_first_step_that_compiles_for_long_does_not_look_like_a_hang(case):
    beaten = Event()
    sgd = sgd_of(case, pulse=lambda step: beaten.set())

    def compiling(scores, hard, rows):
        assert beaten.wait(60)
        return hard

    sgd.step(batches(sgd, 1)[0], compiling)
    assert sgd.steps == 1


def test_losses_are_those_since_the_last_word(case):
    sgd, loss = sgd_of(case), Lossy()
    assert math.isnan(sgd.mean_loss())
    for batch in batches(sgd, 3):
        sgd.step(batch, loss)
    assert sgd.steps == 3
    assert sgd.mean_loss() == pytest.approx(np.mean(loss.seen))
    assert math.isnan(sgd.mean_loss())


def test_the_objective_is_trained_on_and_the_task_loss_is_told(case):
    sgd = sgd_of(case)
    (batch,) = batches(sgd, 1)
    sgd.step(batch, lambda scores, hard, rows: 0 * scores.sum() - 7.0)
    assert 0 < sgd.mean_loss() < 10


def test_the_rate_runs_over_all_steps_of_the_timetable(case):
    sgd, rates = sgd_of(case), []
    (batch,) = batches(sgd, 1)
    for _ in range(9):
        sgd.step(batch)
        rates.append(sgd.train_step.lr)
    assert rates[0] == pytest.approx(0.1)
    assert rates == sorted(rates, reverse=True)
    assert rates[4] == pytest.approx(0.05)
    assert rates[8] == pytest.approx(0.0, abs=1e-9)


def test_a_batch_in_parts_has_the_gradient_of_all_of_it(case):
    """Rows do not affect each other in this network; no row of a smaller last part is lost."""
    ends = []
    for parts in (1, 3):
        case.recipe = replace(case.recipe, accumulate=parts)
        sgd = sgd_of(case)
        sgd.step(batches(sgd, 1)[0])
        ends.append((sgd.mean_loss(), [p.detach().clone() for p in sgd.model.parameters()]))
    (loss, weights), (parted_loss, parted) = ends
    assert parted_loss == pytest.approx(loss)
    assert all(map(partial(torch.allclose, atol=1e-6), parted, weights))


@pytest.mark.parametrize(
    "words",
    [
        {"hard_loss": "bce"},
        {"label_smoothing": 0.3},
        {"quantise_after": 0.0, "epochs": 8},
        {"precision": "bf16"},
        {"optimizer": "timm/adamw", "layer_decay": 0.5},
    ],
    ids=str,
)
def test_what_a_recipe_says_changes_what_is_learned(case, words):
    ends = []
    for recipe in (case.recipe, replace(case.recipe, **words)):
        case.recipe = recipe
        sgd = sgd_of(case)
        for batch in batches(sgd, 3):
            sgd.step(batch)
        assert math.isfinite(sgd.mean_loss())
        ends.append(sgd.model.net.state_dict())
    assert apart(*ends) > 0


def test_steps_of_two_workers_have_chances_of_their_own(case):
    drawn = []

    def draws(scores, hard, rows):
        drawn.append(float(torch.rand(())))
        return scores.sum() * 0

    for worker in (0, 0, 1):
        sgd = sgd_of(case, worker)
        for batch in batches(sgd, 2):
            sgd.step(batch, draws)
    assert drawn[:2] == drawn[2:4]  # whatever was drawn before
    assert len(set(drawn)) == 4


def test_work_that_has_a_price_costs_it(case):
    sgd = sgd_of(case, prices=UnitCosts(step_s=2.0, row_s=0.5))
    for batch in batches(sgd, 2):
        sgd.step(batch)
    sgd.charge_forward(6)
    assert sgd.cpu() == 7.0
    unpriced = sgd_of(case)
    before = unpriced.cpu()
    unpriced.charge_forward(10**9)
    assert unpriced.cpu() - before < 10**6  # it counts its processor's time


def test_what_is_done_aside_is_no_time(case, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    sgd = sgd_of(case)
    with sgd.off_the_clock():
        now[0] += 100
    now[0] += 3
    assert sgd.clock() == 3


def test_a_stop_is_raised_once_the_state_is_kept(case):
    stopped, saved, pulses = [False], [], []
    sgd = sgd_of(case, stop=lambda: stopped[0], pulse=pulses.append)
    sgd.steps = 5
    sgd.alive(lambda: saved.append(True))
    assert saved == []
    stopped[0] = True
    with pytest.raises(RunStopped, match="after step 5"):
        sgd.alive(lambda: saved.append(True))
    assert saved == [True]
    with pytest.raises(RunStopped):
        sgd.alive()  # where nothing can be kept
    assert pulses == [5, 5, 5]


@pytest.fixture
def changed(case, tmp_path, monkeypatch):
    """(sgd, ask): a loop, and a function that sends it a user's change."""
    monkeypatch.setattr("kdlab.changes.queue._EVERY_S", 0.0)
    monkeypatch.setattr("kdlab.train.loop_control._PAUSED_S", 0.0)

    def ask(change):
        append(tmp_path, change)

    sgd = sgd_of(case, changes=ChangeQueue(tmp_path / CONTROL, "ec/seed0"), loss=Hinton())
    return sgd, ask


def test_values_that_are_set_hold_from_the_next_step_on(case, changed):
    sgd, ask = changed
    (batch,) = batches(sgd, 1)
    sgd.step(batch)
    before = sgd.train_step.lr
    wanted = {"lr_factor": 0.5, "loss.soft_weight": 0.25}
    ask(SetValues(time=1.0, member="ec/seed0", set=wanted))
    sgd.alive()
    sgd.steps = 0
    sgd.step(batch)
    assert sgd.train_step.lr == pytest.approx(before / 2)
    assert sgd.control.loss.soft_weight == 0.25
    assert sgd.job.loss.soft_weight != 0.25
    (event,) = case.events.of("settings_changed")
    assert event.worker == 0


@pytest.mark.parametrize("may_save", [True, False])
def test_in_a_pause_it_stands_still_and_saves_when_it_is_told(case, changed, may_save):
    sgd, ask = changed
    saved = []
    looks = iter([SaveCheckpoint, GoOn])

    def pulse(step):
        if sgd.job.changes.paused:
            ask(next(looks)(time=2.0, member="ec/seed0"))

    ask(Pause(time=1.0, member="ec/seed0"))
    sgd.control.job = replace(sgd.job, pulse=pulse)
    sgd.alive((lambda: saved.append(True)) if may_save else None)
    kinds = [e.KIND for e in case.events]
    if may_save:
        assert saved == [True]
        assert kinds == ["paused", "checkpoint_saved", "continued"]
        assert not sgd.job.changes.wants_checkpoint
    else:
        assert kinds == ["paused", "continued"]
        assert sgd.job.changes.wants_checkpoint  # as soon as it may


def test_a_loss_that_is_no_number_is_refused_with_what_to_do(case):
    sgd = sgd_of(case, 1)
    (batch,) = batches(sgd, 1)
    sgd.step(batch)
    sgd._losses[-1] = torch.tensor(float("nan"))
    for asks in (sgd.mean_loss, lambda: sgd.log(0)):
        with pytest.raises(
            Diverged, match=r"worker 1 is nan near step 1.*train\.lr \(0\.1\)"
        ):
            asks()


@pytest.mark.parametrize(
    ("aggregation", "settings"),
    [
        (NoAggregation(), r"train\.lr \(0\.1\)\."),
        (EnsembleAggregation(), r"train\.lr \(0\.1\) or aggregation\.diversity_weight\."),
        (MuLoCo(tau=4), r"aggregation\.inner_lr \(0\.02\)\."),
    ],
)
def test_a_loss_that_diverged_names_the_settings_that_act(
    digits, tmp_path, aggregation, settings
):
    table = RoundSchedule(iterations=8, tau=None)
    sgd = sgd_of(Case(digits, tmp_path, aggregation, table, 1))
    assert re.search(rf"near step 0\. .* Lower {settings}$", str(sgd.diverged("It is nan")))


def test_a_line_of_the_log_has_the_newest_loss(case):
    sgd, loss = sgd_of(case), Lossy()
    sgd.log(0)
    for batch in batches(sgd, 2):
        sgd.step(batch, loss)
    sgd.log(1)
    first, second = case.events.of("local_step")
    assert first.loss is None
    assert (second.round, second.step, second.of_steps) == (1, 2, 8)
    assert second.loss == pytest.approx(loss.seen[-1])


def test_the_training_loss_of_much_data_is_that_of_a_fair_part(case):
    sgd = sgd_of(case)
    data, ids = sgd.job.samples.data, sgd.job.samples.plan.ids
    predicted = sgd.probabilities(data.inputs[ids])
    assert predicted.shape == (len(ids), 10)
    labels = torch.from_numpy(data.labels[ids])
    loss = -predicted[torch.arange(len(ids)), labels].log().mean()
    assert sgd.train_loss() == pytest.approx(float(loss), rel=1e-5)
    asked = []
    really = sgd.probabilities
    sgd.probabilities = lambda inputs: asked.append(len(inputs)) or really(inputs)
    sgd.train_loss(most=50)
    assert asked[0] == pytest.approx(50, abs=10)


def test_soft_labels_of_a_teacher_count_beside_the_loss(case):
    loss = Hinton(temperature=2.0, hard_weight=0.3, soft_weight=0.7)
    worker = LocalWorker(replace(case.make(0).job, loss=loss))
    (batch,) = batches(worker.sgd, 1)
    chance = torch.Generator().manual_seed(0)
    scores, soft = (torch.randn(20, 10, generator=chance) for _ in range(2))
    round_ = case.table.rounds[0]
    hard, rows = cross_entropy(scores, batch.labels), slice(0, 20)
    taught = replace(batch, soft=soft)
    taught = worker._local_loss(None, round_, taught, scores, hard, rows)
    expected = 0.3 * hard + 0.7 * loss.soft(scores, soft, batch.labels)
    assert float(taught) == pytest.approx(float(expected))
    untaught = worker._local_loss(None, round_, batch, scores, hard, rows)
    assert float(untaught) == pytest.approx(float(hard))


def test_one_that_is_resumed_counts_its_checkpoints_on(case):
    job = case.make(0).job
    job = replace(job, recipe=replace(job.recipe, checkpoint_every_steps=4))
    worker = LocalWorker(job)
    for batch in batches(worker.sgd, 6):
        worker.sgd.step(batch)
    worker._save()
    again = LocalWorker(job)
    again.restore(0)
    assert again.sgd.steps == 6
    assert not again.saves.steps_due(7)  # that of step 4 is written
    assert again.saves.steps_due(8)


def test_what_is_remembered_is_published_in_whatever_order_it_lies(tmp_path):
    """On a GPU, weights of convolutions have channels last, and so has state made from them."""
    net = torch.nn.Conv2d(3, 4, 3)
    lying = {"memory//w": net.weight.detach().to(memory_format=torch.channels_last)}
    assert not lying["memory//w"].is_contiguous()
    file = publish(net, 0, tmp_path / "published.safetensors", lying)
    assert torch.equal(fetch(file, "memory//")["w"], net.weight)


def test_momentum_can_be_forgotten(case):
    sgd = sgd_of(case)
    sgd.step(batches(sgd, 1)[0])
    assert sgd.train_step.optimizer.state
    sgd.train_step.forget()
    assert not sgd.train_step.optimizer.state


def test_momentum_goes_beside_a_published_model_to_who_takes_its_place(case, tmp_path):
    sgd, successor = sgd_of(case), sgd_of(case)
    sgd.step(batches(sgd, 1)[0])
    file = publish(sgd.model.net, 0, tmp_path / "published.safetensors")
    keep_momentum(file, sgd.train_step)
    before = {k: v.clone() for k, v in successor.model.state_dict().items()}
    take_momentum(file, successor.train_step)
    first, second = (x.train_step.optimizer.state_dict()["state"] for x in (sgd, successor))
    assert first.keys() == second.keys() != set()
    for number, state in first.items():
        assert torch.equal(state["momentum_buffer"], second[number]["momentum_buffer"])
    assert all(torch.equal(v, before[k]) for k, v in successor.model.state_dict().items())
