"""What a run takes of its machine: how often it is looked at, and what is said."""

from itertools import pairwise

import pytest

from kdlab.run.process import machine_use
from kdlab.run.process.machine_use import MachineUse


class Clock:
    """Goes on when it is told, and a little by itself at each look."""

    def __init__(self, look_s=0.001):
        self.now, self.look_s = 100.0, look_s

    def __call__(self):
        self.now += self.look_s
        return self.now


def looks(clock, seconds, every=1.0):
    """Times of what was said while somebody looked every so many seconds, and all of it."""
    said, at = [], []
    use = MachineUse(lambda one: (said.append(one), at.append(clock.now)), clock)
    for _ in range(int(seconds / every)):
        use.update()
        clock.now += every
    return at, said


def test_every_few_seconds_it_says_what_the_run_takes():
    at, said = looks(Clock(), 20)
    assert len(said) == 3
    assert all(5 <= b - a < 7 for a, b in pairwise(at))
    assert all(one.memory > 0.01 and one.cpu >= 0 for one in said)
    assert said[0].gpus == []


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
    _, said = looks(Clock(), 7)
    assert said[0].gpus == [(0.0, 1.0), (10.0, 2.0)]


@pytest.mark.parametrize("error", [ModuleNotFoundError, RuntimeError])
def test_without_a_way_to_ask_them_there_are_none(monkeypatch, error):
    def refuse(k):
        raise error

    monkeypatch.setattr(machine_use.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine_use.cuda, "utilization", refuse)
    _, said = looks(Clock(), 7)
    assert said[0].gpus == []
