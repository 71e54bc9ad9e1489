"""Experiments small enough for tests of functions, and what they need."""

import numpy as np
import torch

from kdlab.testing.scripted import ScriptedChild

SMALL = {"train.epochs": 1, "data.train_samples": 96, "data.test_samples": 32}


class ScriptedPool:
    """A pool that is none: `teachers` are scripts, and who is asked for is another."""

    def __init__(self, address="tls://127.0.0.1:1", teachers=2):
        self.address, self.tls, self.teacher = address, None, "f"
        self.teachers = [ScriptedChild(pid=100 + k) for k in range(teachers)]
        self.closed = 0

    def add_teacher(self):
        self.teachers.append(ScriptedChild(pid=100 + len(self.teachers)))
        return self.teachers[-1]

    def close(self):
        self.closed += 1


def same_tensors(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def ids_of(samples):
    return np.concatenate(samples.batches(0)).tolist()
