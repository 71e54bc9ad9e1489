"""Ctrl-C and SIGTERM in the process of a run."""

import os
import signal

import pytest
from tests_support import until

from kdlab.run.process import stop_request
from kdlab.run.process.stop_request import StopRequest


@pytest.fixture
def request_(monkeypatch):
    """A stop request and a list of what it kills; restores signal handlers afterwards."""
    killed = []
    monkeypatch.setattr(os, "killpg", lambda *asked: killed.append(asked))
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    timer = signal.setitimer(signal.ITIMER_REAL, 0)  # of pytest-timeout
    yield StopRequest(), killed
    signal.setitimer(signal.ITIMER_REAL, *timer)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_for_a_stop_and_the_second_ends_all(request_, number):
    stop, killed = request_
    assert not stop()
    signal.raise_signal(number)
    assert stop()
    assert killed == []
    signal.raise_signal(signal.SIGINT)
    assert killed == [(os.getpgrp(), signal.SIGKILL)]


def nobody_looks():
    until(lambda: False, seconds=60)


def test_what_does_not_look_is_interrupted(request_, monkeypatch):
    """SIGTERM was heard only after an evaluation, or after a teacher had been measured."""
    monkeypatch.setattr(stop_request, "_HEARD_S", 0.05)
    stop, _ = request_
    assert not stop()  # somebody takes it for a stop
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="stopped by the user"):
        nobody_looks()
    assert stop()


@pytest.mark.parametrize("looked", ["before there is anybody to say it to", "in time"])
def test_who_looks_is_not_interrupted(request_, monkeypatch, looked):
    monkeypatch.setattr(stop_request, "_HEARD_S", 0.05)
    stop, _ = request_
    signal.raise_signal(signal.SIGTERM)
    if looked == "in time":
        assert stop()
    until(lambda: signal.getitimer(signal.ITIMER_REAL)[0] == 0)
    assert stop()
