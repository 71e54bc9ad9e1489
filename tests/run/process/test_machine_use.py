"""CPU, memory and GPUs that a run uses: how often they are measured and reported."""

from itertools import pairwise

import pytest

from kdlab.run.process import machine_use
from kdlab.run.process.machine_use import MachineUse


class Clock:
    """A clock that a test sets; each reading takes `look_s` seconds."""

    def __init__(self, look_s=0.001):
        self.now, self.look_s = 100.0, look_s

    def __call__(self):
        self.now += self.look_s
        return self.now


def looks(clock, seconds, every=1.0):
    """Update every so many seconds; return the times of the reports, and the reports."""
    reports, at = [], []
    use = MachineUse(lambda event: (reports.append(event), at.append(clock.now)), clock)
    for _ in range(int(seconds / every)):
        use.update()
        clock.now += every
    return at, reports


def test_every_few_seconds_it_says_what_the_run_takes():
    at, reports = looks(Clock(), 20)
    assert len(reports) == 3
    assert all(5 <= b - a < 7 for a, b in pairwise(at))
    assert all(report.memory > 0.01 and report.cpu >= 0 for report in reports)
    assert reports[0].gpus == []


def test_where_a_look_takes_long_there_are_few():
    at, _ = looks(Clock(look_s=0.05), 400)
    assert all(b - a >= 50 for a, b in pairwise(at))


def test_of_a_long_run_there_are_few():
    at, _ = looks(Clock(look_s=0.0), 200_000, every=50.0)
    assert at[-1] - at[-2] >= 150
    assert len(at) < 3000


def test_the_gpus_are_said_where_torch_knows(monkeypatch):
    monkeypatch.setattr(machine_use.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine_use.cuda, "utilization", lambda k: 10 * k)
    monkeypatch.setattr(machine_use.cuda, "device_memory_used", lambda k: 2**30 * (k + 1))
    _, reports = looks(Clock(), 7)
    assert reports[0].gpus == [(0.0, 1.0), (10.0, 2.0)]


@pytest.mark.parametrize("error", [ModuleNotFoundError, RuntimeError])
def test_without_a_way_to_ask_them_there_are_none(monkeypatch, error):
    def refuse(k):
        raise error

    monkeypatch.setattr(machine_use.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine_use.cuda, "utilization", refuse)
    _, reports = looks(Clock(), 7)
    assert reports[0].gpus == []
