"""EC-DNN and its baselines, all workers one after the other in this process."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from local_models import MODEL, Case, apart, ec, weights
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from kdlab.errors import Diverged, KdlabError
from kdlab.methods.ensemble.compression import planned_rows
from kdlab.methods.ensemble.exchange import WHOLE, ModelFile, fetch, publish
from kdlab.methods.ensemble.local_job import RoundWork, UnitCosts
from kdlab.methods.ensemble.model_workers import InProcessWorkers, RoundReport
from kdlab.methods.ensemble.round_errors import RoundReports
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule, StepWeight
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.supervision.supervisor import ChildLost
from kdlab.train.aggregation.bmuf import Bmuf
from kdlab.train.aggregation.codistillation import Codistillation
from kdlab.train.aggregation.dart import Dart
from kdlab.train.aggregation.diloco import DiLoCo
from kdlab.train.aggregation.easgd import Easgd
from kdlab.train.aggregation.easgd_async import EasgdAsync
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.muloco import MuLoCo
from kdlab.train.aggregation.none import NoAggregation
from kdlab.train.aggregation.papa import Papa
from kdlab.train.aggregation.streaming_diloco import StreamingDiLoCo


def train_plain(digits, folder, iterations, workers=1, **recipe):
    table = RoundSchedule(iterations=iterations, tau=None)
    return Case(digits, folder, NoAggregation(), table, workers, **recipe).run(looks=1)


def test_ecd_004_one_averaging_worker_is_sgd(digits, tmp_path):
    table = RoundSchedule(iterations=20, tau=6, averages=True)
    averaged = Case(digits, tmp_path / "ma", ModelAverage(tau=6), table, 1).run()
    plain = train_plain(digits, tmp_path / "s", 20)
    assert apart(weights(averaged), weights(plain)) == 0


def test_one_compressing_worker_without_weights_is_sgd(digits, tmp_path):
    spec, table = ec(16, 4, 0.0, StepWeight(0.0, 0.0), p_iterations=2, mu=1.0)
    compressed = Case(digits, tmp_path / "ec", spec, table, 1).run()
    plain = train_plain(digits, tmp_path / "s", 16 + 3 * 2)
    assert apart(weights(compressed), weights(plain)) == 0


def test_averaging_every_step_is_all_reduce(digits, tmp_path):
    """Plain SGD from equal weights: the mean of K steps is a step on the mean gradient."""
    plain = {"momentum": 0.0, "schedule": "constant", "weight_decay": 0.0}
    table = RoundSchedule(iterations=5, tau=1, averages=True)
    case = Case(digits, tmp_path, ModelAverage(tau=1), table, 3, **plain)
    averaged = weights(case.run())
    model = case.model(0)
    batches = [case.samples(k).batches(0) for k in range(3)]  # 80 images: four batches
    batches = [b + case.samples(k).batches(1) for k, b in enumerate(batches)]
    epochs = [0] * 4 + [1]
    for step in range(5):
        loss = sum(
            cross_entropy(
                model(torch.from_numpy(case.data.views(batches[k][step], epochs[step]))),
                torch.from_numpy(case.data.labels[batches[k][step]]),
            )
            for k in range(3)
        )
        model.zero_grad()
        (loss / 3).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
    assert apart(averaged, dict(model.net.state_dict())) < 1e-6


def test_ecd_026_e_dnn_is_independent_trainings(digits, tmp_path):
    table = RoundSchedule(iterations=12, tau=None, looks=3)
    ensemble = Case(digits, tmp_path / "e", NoAggregation(), table, 2)
    outcome = ensemble.run(looks=3)
    for worker in range(2):
        single = Case(digits, tmp_path / str(worker), NoAggregation(), table, 2)
        trainer = single.make(worker)
        source = NoTeacherSource(trainer.job.samples)
        for round_ in table.rounds:
            done = trainer.train(round_, (), source)
        assert apart(weights(outcome, worker), fetch(done.model)) == 0
    assert [look.iterations for look in outcome.looks] == [4, 8, 12]


@pytest.mark.long
def test_ec_dnn_learns_and_keeps_its_books(digits, tmp_path):
    spec, table = ec(60, 15, p_iterations=5)
    case = Case(digits, tmp_path, spec, table, 3, epochs=20)
    outcome = case.run()
    assert [look.round for look in outcome.looks] == [0, 1, 2, 3]
    first, last = outcome.looks[0], outcome.looks[-1]
    assert last.global_ < first.global_ < 80
    account = outcome.account
    assert account.iterations == 60
    assert account.steps == 3 * (60 + 3 * 5)
    done = case.events.of("worker_done")
    assert account.samples == sum(e.work["samples"] for e in done)
    assert 18 * account.steps < account.samples <= 20 * account.steps
    assert account.parallel_s == pytest.approx(
        account.train_s + account.relabel_s + account.compress_s + account.communication_s,
        rel=0.5,  # the slowest of each part may be another worker
    )
    for event in done:
        if event.what == "combine":
            assert event.work["ensemble_loss"] <= np.mean(event.work["model_losses"]) + 1e-5
            assert len(event.work["model_losses"]) == 3
    z_bar = [e for e in done if e.what == "train"]
    assert all(e.work["relabel_s"] == 0 for e in z_bar if e.work["round"] == 0)
    assert all(e.work["relabel_s"] > 0 for e in z_bar if e.work["round"] > 0)
    assert last.diff_lg == pytest.approx(np.mean(last.locals) - last.global_)
    assert set(outcome.losses) == {0, 1, 2}
    assert last.diff_lc is None  # nothing is compressed after the last communication


def test_priced_work_takes_what_it_did_times_its_price(digits, tmp_path):
    spec, table = ec(iterations=2, tau=1, p_iterations=1)
    case = Case(digits, tmp_path, spec, replace(table, compress_last=True))
    case.prices = UnitCosts(step_s=1.0, row_s=0.001)
    account = case.run().account
    assert account.train_s == account.compress_s == pytest.approx(2.0)
    # Two models on the batches of both compressions, and for z-bar of the second round.
    assert account.relabel_s == pytest.approx(0.001 * 2 * 20 * 3)
    assert account.parallel_s == pytest.approx(
        4.0 + account.relabel_s + account.communication_s
    )


def test_the_last_local_model_is_compressed_and_chosen_by_all_its_data(digits, tmp_path):
    """The student of a run is chosen like this, and not by the losses of its last round's steps."""
    spec, table = ec(iterations=16, tau=8, p_iterations=6)
    case = Case(digits, tmp_path, spec, replace(table, compress_last=True))
    outcome = case.run()
    *_, last = outcome.looks
    best = min(outcome.losses, key=outcome.losses.get)
    assert last.chosen == last.compressed[best]
    assert last.compressed != last.locals
    work = RoundWork(
        round=1, model=outcome.models[0], loss=0.1, steps=8, samples=160, wall_s=0.0
    )
    reports = RoundReports({k: RoundReport(k, "train", work) for k in (0, 1)})
    reports.combined[1] = RoundReport(1, "combine", work, train_loss=0.7)
    assert (reports.loss(0), reports.loss(1)) == (0.1, 0.7)


def test_the_global_error_is_that_of_the_mean_of_the_outputs(digits, tmp_path):
    spec, table = ec(20, 10, p_iterations=2)
    case = Case(digits, tmp_path, spec, table, 2)
    outcome = case.run()
    data, total = case.data, 0.0
    for file in outcome.models:
        model = MODEL.build(10, 1).eval()
        model.net.load_state_dict(load_file(file.path))
        with torch.inference_mode():
            total = total + model(torch.from_numpy(data.inputs[data.test])).softmax(1)
    wrong = (total.argmax(1).numpy() != data.labels[data.test]).mean()
    assert outcome.looks[-1].global_ == pytest.approx(100 * wrong)


RESUMED = {
    "ec": ec(20, 5, p_iterations=2, mu=0.5),
    "ec_in_line": ec(20, 5, p_iterations=2, mu=1.0),
    "ma": (ModelAverage(tau=5), RoundSchedule(iterations=20, tau=5, averages=True)),
    "e": (NoAggregation(), RoundSchedule(iterations=20, tau=None, looks=4)),
}
RIVALS = (
    DiLoCo(tau=5),
    StreamingDiLoCo(tau=10, fragments=2),
    Papa(tau=5),
    Easgd(tau=5),
    Bmuf(tau=5),
    Dart(tau=5),
    MuLoCo(tau=5),
    Codistillation(tau=5),
    EasgdAsync(tau=5),  # the last: each has the centre of its own last exchange
)
RESUMED |= {
    str(spec.component).rpartition("/")[2]: (spec, spec.timetable(20, 4)) for spec in RIVALS
}


def stopped_cases():
    """CI trains every kind with each round saved, and two of them with none saved, too."""
    for kind in RESUMED:
        yield pytest.param(kind, 0.0)
        yield pytest.param(
            kind, 1e9, marks=() if kind in ("ec", "ma") else pytest.mark.nightly
        )


@pytest.mark.parametrize(("kind", "keep_every_s"), stopped_cases())
@pytest.mark.long
def test_a_resumed_training_ends_as_an_undisturbed_one(
    digits, tmp_path, kind, keep_every_s
):
    spec, table = RESUMED[kind]
    quiet = Case(digits, tmp_path / "quiet", spec, table, 2).run(looks=4)
    case = Case(digits, tmp_path / "stopped", spec, table, 2)
    with pytest.raises(KdlabError, match="stopped by the user"):
        case.run(
            stop=lambda: len(case.events.of("round_closed")) == 2,
            keep_every_s=keep_every_s,
            looks=4,
        )
    again = Case(digits, tmp_path / "stopped", spec, table, 2)
    outcome = again.run(looks=4)
    resumed = again.events.of("resumed")
    if keep_every_s and table.rounds[0].combines and kind != "easgd_async":
        assert not resumed  # nothing was saved: only a centre is saved at a stop
    else:
        assert resumed[0].epoch == 2
    for worker in range(2):
        assert apart(weights(quiet, worker), weights(outcome, worker)) == 0
    assert [x.global_ for x in quiet.looks] == [x.global_ for x in outcome.looks]
    assert outcome.account.steps == quiet.account.steps


class InOrder(NoTeacherSource):
    """Delivers what follows its start, as a reader does, and nothing else."""

    def __init__(self, worker):
        super().__init__(worker.job.samples)
        # Compressing in line passes batches over; a spec refuses that with a reader.
        in_line = worker.job.aggregation.compresses_in_line
        self.start = None if in_line else worker.stream.start()

    def epoch(self, epoch, done):
        if self.start is not None:
            assert {"epoch": epoch, "done": list(done)} == self.start
        self.start = None
        return super().epoch(epoch, done)


class Losing(InProcessWorkers):
    """Loses worker 1 instead of carrying out its n-th order."""

    def __init__(self, case, at):
        super().__init__(case.make, InOrder)
        self.orders, self.at = 0, at

    def events(self):
        if self._orders and self._orders[0].worker == 1:
            self.orders += 1
            if self.orders == self.at:
                self._orders.popleft()
                self._sources.pop(1, None)
                yield ChildLost(1, None, "on purpose", was_ready=True)
                return
        yield from super().events()


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.long
def test_whatever_a_lost_worker_was_doing_the_round_goes_on(digits, tmp_path, at):
    spec, table = ec(30, 10, p_iterations=3)
    case = Case(digits, tmp_path, spec, table, 3)
    outcome = case.direction(Losing(case, at)).run()
    (lost,) = case.events.of("local_model_lost")
    assert lost.worker == 1
    assert [m.worker for m in outcome.models] == [0, 1, 2]
    sizes = [len(e.models) for e in case.events.of("round_closed")]
    during_training, number = at % 2 == 1, (at - 1) // 2
    expected = [3, 3, 3]
    if during_training and number < 2:
        expected[number] = 2
        assert case.events.of("round_incomplete")[0].models == [0, 2]
    assert sizes == expected


def comings_back():
    """CI has one moment of loss for each aggregation with a memory; the nightly run has all."""
    for number, spec in enumerate((*RIVALS[:5], MuLoCo(tau=5))):
        name = spec.component.rpartition("/")[2]
        for at in (1, 2, 5, 8):
            marks = () if at == (8, 5, 2, 1, 5, 2)[number] else pytest.mark.nightly
            yield pytest.param(spec, at, id=f"{name}-{at}", marks=marks)


@pytest.mark.parametrize(("spec", "at"), comings_back())
@pytest.mark.long
def test_a_worker_that_comes_back_remembers_what_the_others_do(digits, tmp_path, spec, at):
    """Whatever it was doing: in the end all have the same global model."""
    case = Case(digits, tmp_path, spec, spec.timetable(20, 4), 3)
    outcome = case.direction(Losing(case, at), keep_every_s=1e9).run()
    assert case.events.of("local_model_lost")
    global_ones = [fetch(file, WHOLE) or fetch(file) for file in outcome.models]
    assert apart(global_ones[0], global_ones[1]) < 1e-6
    assert apart(global_ones[0], global_ones[2]) < 1e-6


WAITED_FOR = {
    "ec": ec(30, 10, p_iterations=3, mu=0.5),
    "ec in line": ec(30, 10, p_iterations=3, mu=1.0),
    "ma": (ModelAverage(tau=10), RoundSchedule(iterations=30, tau=10, averages=True)),
    "diloco": (DiLoCo(tau=10), DiLoCo(tau=10).timetable(30, 3)),
    "muloco": (MuLoCo(tau=10), MuLoCo(tau=10).timetable(30, 3)),
}


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", WAITED_FOR)
@pytest.mark.long
def test_where_the_others_wait_nothing_is_lost_with_a_worker(digits, tmp_path, kind, at):
    """Even where its last reset point is no checkpoint: its momentum is saved with its model."""
    spec, table = WAITED_FOR[kind]
    quiet = Case(digits, tmp_path / "quiet", spec, table, 3).run()
    case = Case(digits, tmp_path / "lost", spec, table, 3)
    outcome = case.direction(Losing(case, at), keep_every_s=1e9, waits=True).run()
    assert [e.worker for e in case.events.of("local_model_lost")] == [1]
    assert not case.events.of("round_incomplete")
    assert outcome.account.steps == quiet.account.steps
    planned = [planned_rows(case.samples(k).plan, table, spec) for k in range(3)]
    assert outcome.account.samples == quiet.account.samples == sum(planned)
    for worker in range(3):
        assert apart(weights(quiet, worker), weights(outcome, worker)) == 0


def test_a_worker_that_is_lost_again_and_again_ends_the_training(digits, tmp_path):
    class Never(InProcessWorkers):
        def send(self, order):
            self._events.append(ChildLost(order.worker, None, "no memory", was_ready=True))

    spec, table = ec()
    case = Case(digits, tmp_path, spec, table, 1)
    model_workers = Never(case.make, lambda w: NoTeacherSource(w.job.samples))
    with pytest.raises(KdlabError, match=r"lost 4 times in a row.*no memory"):
        case.direction(model_workers).run()


@pytest.mark.parametrize("kind", ["alone", "compressed"])
def test_a_loss_that_is_no_number_ends_the_training(digits, tmp_path, kind):
    plain = NoAggregation(), RoundSchedule(iterations=40, tau=None)
    spec, table = plain if kind == "alone" else ec(40, tau=1, p_iterations=1)
    case = Case(digits, tmp_path, spec, table, lr=1e30)
    with pytest.raises(Diverged, match=r"near step \d+.*train\.lr"):
        case.run()


def test_a_model_that_changed_on_the_way_is_not_used(tmp_path):
    net = MODEL.build(10, 1).net
    file = publish(net, 2, tmp_path / "w.safetensors")
    assert apart(fetch(file), dict(net.state_dict())) == 0
    content = bytearray((tmp_path / "w.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(KdlabError, match=r"model of worker 2 .* was published with"):
        fetch(file)
    gone = ModelFile(0, str(tmp_path / "none"), "", 0)
    with pytest.raises(KdlabError, match="cannot be read"):
        fetch(gone)


def test_relabelling_does_not_touch_the_workers_own_model(digits, tmp_path):
    spec, table = ec(10, 5, p_iterations=2, alpha=0.0)
    case = Case(digits, tmp_path, spec, table, 2)
    workers = [case.make(k) for k in range(2)]
    done = [w.train(table.rounds[0], (), NoTeacherSource(w.job.samples)) for w in workers]
    before = copy.deepcopy(workers[0].model.net.state_dict())
    quiet = RoundSchedule(iterations=10, tau=5, compresses=True, p_iterations=1)
    zero = quiet.rounds[0].__class__(0, 5, compress_steps=1, compression_weight=0.0)
    workers[0].sgd.train_step.lr = 0.0
    workers[0].sgd.train_step.at = lambda *place: None
    workers[0].combine(zero, [d.model for d in done])
    assert apart(before, dict(workers[0].model.net.state_dict())) == 0


@dataclass(frozen=True, kw_only=True)
class Nearer(AggregationSpec):
    """A custom aggregation of outputs; this class is all that it needs."""

    asks_itself = False

    def timetable(self, iterations, looks):
        return RoundSchedule(iterations=iterations, tau=5, diversity_weight=2.0)

    def local_loss(self, scores, hard, mean, weight):
        return hard if mean is None else hard + weight * cross_entropy(scores, mean)


def test_an_aggregation_of_outputs_of_ones_own_is_one_class(digits, tmp_path):
    spec = Nearer()
    case = Case(digits, tmp_path, spec, spec.timetable(10, 2), 2)
    outcome = case.run()
    assert len(outcome.models) == 2
    done = case.events.of("worker_done")
    fetched = {event.work["round"]: event.work["fetched_bytes"] for event in done}
    assert fetched[0] == 0
    assert 0 < fetched[1] <= max(m.bytes for m in outcome.models)  # only the other worker's
