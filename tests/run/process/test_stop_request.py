"""Ctrl-C as a run's process hears it."""

import os
import signal

import pytest

from kdlab.run.process.stop_request import StopRequest


@pytest.fixture
def request_(monkeypatch):
    """One, and what is killed; the handlers of this process come back."""
    killed = []
    monkeypatch.setattr(os, "killpg", lambda *asked: killed.append(asked))
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield StopRequest(), killed
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
