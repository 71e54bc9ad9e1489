"""Runs that are done in the process of the test, from `start` to their end.

What a run decides does not depend on whose process it is: this is the same folder, the same
`execute` and the same `RunProcess` as in a process of its own, at a twentieth of the price. What
its process has beside them (signals, the watchdog, a session of its own) is tested elsewhere.

    run = kdlab.load("smoke/none").start(say)  # returns when it has ended
"""

import contextlib
import json
import os

from kdlab.events.log import select
from kdlab.run.process.execution import execute
from kdlab.run.process.run_process import RunProcess


class Killed(BaseException):
    """Ends a run as SIGKILL does: nothing in a run catches it."""


class RunsHere:
    """Stands where `kdlab.run.handle.job_handle.spawn` does.

    `stop` is asked by the run whether somebody wants its end, with its folder, after each
    step and wherever else it looks; it may give orders, or raise `Killed`.
    """

    make = RunProcess

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.stop = lambda folder: False

    def __call__(self, folder, components, lock):
        hashes = {name: entry["sha256"] for name, entry in components.items()}
        self.monkeypatch.setenv("KDLAB_COMPONENTS", json.dumps(hashes))
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        with (
            folder.log.open("a") as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
            contextlib.suppress(Killed),
        ):
            execute(folder, lambda: self.make(folder, lambda: self.stop(folder)))


def after(step, then=lambda folder: True):
    """Make a `stop` that calls `then`, once, when the log has this step."""
    done = []

    def look(folder):
        if done or not any(e.step >= step for e in steps(folder)):
            return False
        done.append(step)
        return then(folder)

    return look


def killed(folder):
    """End the run as SIGKILL does."""
    raise Killed


def steps(folder):
    """Steps of students in the log, in order."""
    return [e for e in select(folder.events, "step_logged") if e.member != "teacher"]


def losses(folder):
    """Loss of each step, of the last time that it was done."""
    return {e.step: e.loss for e in steps(folder)}
