"""Saving and compiling look alive; what hangs for an hour does not."""

import threading

from kdlab.train.alive import alive


def test_it_beats_while_the_block_runs_and_not_after():
    beats, twice = [], threading.Event()

    def beat():
        beats.append(1)
        if len(beats) == 2:
            twice.set()

    with alive(beat, every_s=0.05):
        assert twice.wait(60)
    there = len(beats)
    assert there >= 2
    assert not threading.Event().wait(0.3)
    assert len(beats) == there


def test_it_stops_beating_after_so_long():
    beats = []
    with alive(lambda: beats.append(1), at_most_s=0.1, every_s=0.1):
        threading.Event().wait(0.5)
    assert len(beats) == 1
