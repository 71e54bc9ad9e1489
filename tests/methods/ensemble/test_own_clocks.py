"""Asynchronous EASGD in the engine, in any order, against Algorithm 1 of its paper in NumPy."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from local_models import Case, apart, weights

from kdlab.config.seal import file_sha256
from kdlab.errors import KdlabError
from kdlab.methods.ensemble.exchange import MEMORY, WHOLE, ModelFile, fetch
from kdlab.methods.ensemble.model_workers import InProcessWorkers, RoundReport, execute
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.supervision.supervisor import ChildLost
from kdlab.train.aggregation.easgd_async import EasgdAsync

ALPHA, TAU, ITERATIONS = 0.3, 3, 14
ROUNDS = 5


def case_of(digits, folder, workers=3):
    spec = EasgdAsync(tau=TAU, alpha=ALPHA)
    return Case(digits, folder, spec, spec.timetable(ITERATIONS, 4), workers)


def array(state):
    return {k: v.double().numpy() for k, v in state.items()}


class Centre:
    """The centre by the paper's formulae, from the models that the workers trained."""

    def __init__(self, case):
        self.now = array(case.model(0).net.state_dict())
        self.exchanges = []

    def hear(self, report):
        if report.what == "train":
            return
        path = Path(report.done.model.path)
        local = path.with_name(path.name.replace("reset", "local"))
        x = array(fetch(ModelFile(0, str(local), file_sha256(local), 0)))
        after = {k: x[k] - ALPHA * (x[k] - c) for k, c in self.now.items()}
        self.now = {k: c + ALPHA * (x[k] - c) for k, c in self.now.items()}
        for beside, expected in (
            (None, after),
            (MEMORY + "centre.", self.now),
            (WHOLE, self.now),
        ):
            arrays = array(fetch(report.done.model, beside))
            assert arrays.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(arrays[name], value, atol=1e-6, rtol=0)
        self.exchanges.append((report.worker, report.done.round))


class AnyOrder(InProcessWorkers):
    """Orders are carried out in any order; some workers are lost, before or after they did it."""

    def __init__(self, case, seed, losses=0, hear=lambda report: None):
        super().__init__(case.make, lambda w: NoTeacherSource(w.job.samples))
        self.random, self.losses, self.hear = random.Random(seed), losses, hear
        self.lost = Counter()

    def events(self):
        while self._events:
            yield self._events.popleft()
        if not self._orders:
            return
        self._orders.rotate(self.random.randrange(len(self._orders)))
        order = self._orders[0]
        if self.losses and self.random.random() < 0.4:
            self.losses -= 1
            self._orders.popleft()
            if self.random.random() < 0.5:
                worker = self.workers[order.worker]
                execute(worker, order, self._source_of(worker, order))
            self._sources.pop(order.worker, None)
            self.lost[order.what] += 1
            yield ChildLost(order.worker, -9, "killed by the test", True)
            return
        for event in super().events():
            if isinstance(event, RoundReport):
                self.hear(event)
            yield event


@pytest.mark.parametrize("losses", [0, 8])
def test_exchanges_are_those_of_the_paper_in_any_order(digits, tmp_path, losses):
    case = case_of(digits, tmp_path)
    centre = Centre(case)
    workers = AnyOrder(case, seed=4, losses=losses, hear=centre.hear)
    outcome = case.direction(workers, looks=2).run()
    assert losses == 0 or (workers.losses == 0 and min(workers.lost.values()) > 1)
    # Each worker exchanged once in each round, and rounds overlap.
    assert sorted(centre.exchanges) == [(k, r) for k in range(3) for r in range(ROUNDS)]
    rounds = [r for _, r in centre.exchanges]
    assert rounds != sorted(rounds)
    final = array(fetch(outcome.models[0], WHOLE))  # the global model is the last centre
    for name, value in centre.now.items():
        np.testing.assert_allclose(final[name], value, atol=1e-6, rtol=0)
    account = outcome.account
    assert (account.steps, account.iterations) == (3 * ITERATIONS, ITERATIONS)
    done = case.events.of("worker_done")
    assert account.samples == sum(e.work["samples"] for e in done) == 3 * ITERATIONS * 20
    size = outcome.models[0].bytes
    assert account.exchanged_bytes == ROUNDS * size
    assert account.fetched_bytes == (3 * ROUNDS - 1) * size
    assert [e.round for e in case.events.of("round_closed")] == list(range(ROUNDS))
    assert set(outcome.losses) == {0, 1, 2}
    assert len(list((tmp_path / "rounds").iterdir())) <= 3


def test_momentum_comes_back_with_a_lost_worker(digits, tmp_path):
    """With one worker there is one order of exchanges, so the weights are equal to the bit."""
    quiet = case_of(digits, tmp_path / "quiet", 1).run()
    case = case_of(digits, tmp_path / "lost", 1)
    workers = AnyOrder(case, seed=63, losses=4)
    outcome = case.direction(workers).run()
    assert workers.losses == 0
    assert min(workers.lost["train"], workers.lost["combine"]) > 0
    assert apart(weights(quiet), weights(outcome)) == 0
    assert apart(fetch(quiet.models[0], WHOLE), fetch(outcome.models[0], WHOLE)) == 0


def test_a_resume_begins_where_each_worker_was(digits, tmp_path):
    stopped = case_of(digits, tmp_path)
    centre = Centre(stopped)

    def far_apart():
        reached = [
            max([r for k, r in centre.exchanges if k == w], default=-1) for w in range(3)
        ]
        return max(reached) - min(reached) >= 3

    with pytest.raises(KdlabError, match="stopped by the user"):
        stopped.direction(
            Behind(stopped, 5, hear=centre.hear), stop=far_apart, looks=2, keep_every_s=1e9
        ).run()
    before = len(stopped.events.of("worker_done"))
    again = case_of(digits, tmp_path)
    outcome = again.direction(AnyOrder(again, 6, hear=centre.hear), looks=2).run()
    assert again.events.of("resumed")
    assert sorted(centre.exchanges) == [(k, r) for k in range(3) for r in range(ROUNDS)]
    assert before + len(again.events.of("worker_done")) == 2 * 3 * ROUNDS  # nothing twice
    assert outcome.account.steps == 3 * ITERATIONS
    assert outcome.account.samples == 3 * ITERATIONS * 20
    assert set(outcome.losses) == {0, 1, 2}
    assert [look.round for look in outcome.looks] == [0, 2, 4]
    ended = case_of(digits, tmp_path)
    with pytest.raises(KdlabError, match="has already ended"):
        ended.run()


class Behind(AnyOrder):
    """Worker 0 comes last."""

    def events(self):
        last = [order for order in self._orders if order.worker == 0]
        if len(last) < len(self._orders):
            for order in last:
                self._orders.remove(order)
            yield from super().events()
            self._orders.extend(last)
            return
        yield from super().events()


def test_time_is_of_the_slowest_sum_and_not_the_sum_of_the_slowest(digits, tmp_path):
    """Each worker is slow in every second round, and nobody waits for it."""
    case = case_of(digits, tmp_path, 2)

    class Timed(InProcessWorkers):
        def events(self):
            for event in super().events():
                if isinstance(event, RoundReport):
                    slow = event.worker == event.done.round % 2
                    times = {"train_s": (10.0 if slow else 1.0) * (event.what == "train")}
                    for name, value in times.items():
                        object.__setattr__(event.done, name, value)
                yield event

    workers = Timed(case.make, lambda w: NoTeacherSource(w.job.samples))
    outcome = case.direction(workers).run()
    account, size = outcome.account, outcome.models[0].bytes
    # One model is sent and one received, on a port of 1.25e8 bytes/s in full duplex.
    assert account.communication_s == pytest.approx(ROUNDS * (2e-4 + size / 1.25e8))
    assert account.parallel_s == pytest.approx(3 * 10 + 2 * 1 + account.communication_s)
    assert account.train_s == pytest.approx(5 * 10)
