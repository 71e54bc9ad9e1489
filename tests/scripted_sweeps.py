"""Whole sweeps within the process of the test: what carries out trials is a script."""

import itertools
import os
from pathlib import Path

from optuna.trial import TrialState
from small_sweeps import searched

from kdlab.codec import to_builtins
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder, sweeps_folder
from kdlab.run.process.execution import execute
from kdlab.testing.scripted import ScriptedChild
from kdlab.tuning.folder import SweepFolder
from kdlab.tuning.handle import Sweep
from kdlab.tuning.process import SweepProcess
from kdlab.tuning.simulated import simulate
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder, TrialWorkerOrder


class TrialChild(ScriptedChild):
    """Carries out each order at once; `work` returns its end, or None while it goes on."""

    def __init__(self, work):
        super().__init__(pid=os.getpid())  # somebody who lives
        self.work = work
        self.say(ready=True)

    def send(self, **order):
        heard = super().send(**order)
        if heard and "end" not in order:
            answer = self.work(self, TrialWorkerOrder.from_builtins(order))
            if answer is not None:
                self.say(**to_builtins(answer))
        return heard


class Hosts:
    """Starts workers whose orders are carried out by a function; all that were started."""

    def __init__(self, work):
        self.work, self.children = work, []

    def start(self, module, config, log, pulse):
        self.children.append(TrialChild(self.work))
        return self.children[-1]


def spec_at(order):
    """Spec of the training in a trial's folder."""
    return RunFolder(Path(order.run)).resolved()


def top1(spec):
    """Made-up accuracy of a training: best at a rate of 0.1, with luck by its seed."""
    luck = sum(seed % 7 for seed in spec["seeds"]) / len(spec["seeds"])
    return 90.0 - 100 * abs(spec["train"]["lr"] - 0.1) + luck


def train(child, order):
    """A training that ends at once; it leaves what a real one does."""
    if not isinstance(order, TrialOrder):
        return None
    value = top1(spec_at(order))
    result = {"validation_top1": value, "run_dir": order.run}
    RunFolder(Path(order.run)).write_status(state="finished", result=result)
    return TrialEnded(order.number, "finished", None, result)


class SweepFromInside:
    """A sweep, carried out by this process: its exit code, its folder, its handle."""

    def __init__(
        self, tree, work, study="small", *, stop=lambda: False, hosts=None, **changes
    ):
        search = searched(tree, **changes)
        self.hosts = hosts or Hosts(work)
        self.folder = SweepFolder(sweeps_folder() / study)
        self.sweep = Sweep(self.folder)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        search._write(self.folder, {})
        self.code = execute(
            self.folder, lambda: SweepProcess(self.folder, stop, self.hosts.start)
        )


def after(calls):
    """Make a `stop` that is true once it was called so often."""
    count = itertools.count(1)
    return lambda: next(count) > calls


def simulated(child, order):
    return simulate(order)


def events(inside, kind):
    return list(select(inside.folder.events, kind))


def counted(sweep):
    """States of trials; those that were tried again left out."""
    trials = sweep.study.trials
    again = {t.user_attrs.get("retry_of") for t in trials}
    return [t.state for t in trials if t.number not in again]


def finished_values(sweep):
    """Values of the trials that have ended well, by number."""
    return {
        t.number: t.values for t in sweep.study.trials if t.state == TrialState.COMPLETE
    }
