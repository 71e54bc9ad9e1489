"""Saving and compiling look alive; what hangs for an hour does not."""

import threading

import torch

from kdlab.train.alive import alive
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep


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


def test_a_first_step_beats_however_long_it_compiles_and_no_later_one():
    beaten, model = threading.Event(), torch.nn.Linear(3, 2)
    train_step = TrainStep(Recipe(device="cpu"), model, beat=beaten.set)

    def compiling(rows):
        assert beaten.wait(60)
        return model(torch.ones(2, 3)[rows]).sum()

    def quick(rows):
        assert "alive" not in {thread.name for thread in threading.enumerate()}
        return model(torch.ones(2, 3)[rows]).sum()

    for loss_of in (compiling, quick):
        train_step.gradients(2, 1, loss_of)
