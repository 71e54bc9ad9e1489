"""Overhead of kdlab over a bare PyTorch loop that does the same work, and at import.

Both loops train the same student on the same views in the same order with the same
optimiser, schedule and weight decay; only the bookkeeping differs. They take turns step by
step, so that whatever else the machine does meets both.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from subprocess import CompletedProcess, run

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from benchmarks.harness import going, quiet, report, runs_apart, until
from benchmarks.students import loop_of
from kdlab.data.digits import Digits
from kdlab.data.samples import PlannedSamples, planned
from kdlab.events.log import EventLog, MemberLog
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.report.figures import EmitLine, Figure, Report, figure, over
from kdlab.run.experiment import load
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.soft_labels.source import Batch
from kdlab.train.optimizers import make_optimizer
from kdlab.train.recipe import Recipe
from kdlab.train.schedules import lr_at

_ASKED = 5  # times each, after one that is not counted
_SMALL = {
    "help": ("--help",),
    "list": ("list",),
    "search": ("list", "--search", "resnet"),
    "show_component": ("show", "losses/hinton"),
    "show_config": ("show", "quickstart"),
    "runs": ("runs",),
    "typo": ("run", "quickstart", "train.lrr=1"),
    "unknown_config": ("run", "quickstartt"),
    "unknown_sweep": ("sweep", "quickstartt"),
    "reproduce": ("reproduce",),
}
_ORDERS = {  # to an active run
    "control": ("control", "last", "checkpoint"),
    "control_set": ("control", "last", "set", "loss.temperature=3"),
    "control_refused": ("control", "last", "set", "soft_labels.lt=1e9"),
    "runs_meanwhile": ("runs",),
}
_RUN = ("train.epochs=1000000", "tracking.enabled=false")
_IMPORT = (
    "import time; t = time.perf_counter(); import kdlab; print(time.perf_counter() - t)"
)


def measure(repeats: int = 15, say: EmitLine = quiet) -> Report:
    """`n_training_over_bare_loop` (samples/s over samples/s), `import_s`, CPU of small commands."""
    torch.set_num_threads(1)
    # Steps of a few milliseconds: the shorter the step, the more bookkeeping weighs.
    recipe = Recipe(epochs=4, batch=64, threads=1, evaluate_every=4, device="cpu")
    spec, digits = CifarResNet(depth=8, width=(8, 8, 12, 16)), Digits(size=8)
    samples = planned(digits.load(), digits.to_dict(), batch=64, seed=0, epochs=4)
    # The first warms up and is not counted.
    pairs = [_rates(recipe, spec, samples) for _ in range(repeats + 1)][1:]
    ours, bare = map(list, zip(*pairs, strict=True))
    return report(
        "overhead",
        [
            figure("n_training_over_bare_loop", over(ours, bare), "ratio"),
            figure("n_training_samples_per_second", ours, "samples/s"),
            figure("import_s", [_import_seconds() for _ in range(5)], "s"),
            *_small_commands(say),
        ],
    )


def _small_commands(say: EmitLine) -> list[Figure]:
    """CPU seconds of commands that should answer at once, after a call that is not counted."""
    with runs_apart(), tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"KDLAB_HOME": folder}

        def asked(commands: Mapping[str, Sequence[str]]) -> Iterator[Figure]:
            for name, words in commands.items():
                spent = [_cpu_seconds(words, env) for _ in range(_ASKED + 1)][1:]
                say(f"{name}: {median(spent):.2f} s of CPU")
                yield figure(f"cpu_s/{name}", spent, "s")

        figures = [*asked(_SMALL)]
        begins = ("control", "last", "set", "lr_factor=1")
        with going(load("smoke/served", *_RUN)):
            until(lambda: _kdlab(begins, env).returncode == 0, tick_s=0.2)
            return [*figures, *asked(_ORDERS)]


def _kdlab(words: Sequence[str], env: Mapping[str, str]) -> "CompletedProcess[bytes]":
    command = [sys.executable, "-m", "kdlab", *words]
    return run(command, env=env, capture_output=True, check=False)


def _cpu_seconds(words: Sequence[str], env: Mapping[str, str]) -> float:
    """Seconds that kdlab takes with these words, user and system."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    _kdlab(words, env)
    return spent() - before


def _rates(
    recipe: Recipe, spec: CifarResNet, samples: PlannedSamples
) -> tuple[float, float]:
    """Samples/s of kdlab's loop and of the bare one."""
    with (
        tempfile.TemporaryDirectory() as name,
        closing(EventLog(Path(name) / "log")) as log,
    ):
        loop = loop_of(spec, samples, Path(name), None, recipe, MemberLog(log, "b").emit)
        source = _InTurns(samples, _BareLoop(recipe, spec, samples))
        loop.run(source)
    seen = recipe.epochs * len(samples.plan.ids)
    return seen / source.ours_s, seen / source.bare_s


class _BareLoop:
    """The loop that a user writes by hand: no events, counts, checkpoints or stop requests."""

    def __init__(self, recipe: Recipe, spec: CifarResNet, samples: PlannedSamples) -> None:
        self.recipe, self.samples, self.steps = recipe, samples, 0
        torch.manual_seed(0)
        self.model = spec.build(samples.classes, samples.data.shape[0]).train()
        self.optimizer = make_optimizer(recipe, self.model)

    def step(self, ids: NDArray[np.int64], epoch: int) -> None:
        batches = self.samples.plan.batches
        views = torch.from_numpy(self.samples.views(ids, epoch))
        labels = torch.from_numpy(self.samples.labels(ids))
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(self.recipe, self.steps / batches, batches)
        loss = cross_entropy(self.model(views), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1


class _InTurns(NoTeacherSource):
    """A source that trains the bare loop on each batch, after kdlab's loop."""

    def __init__(self, samples: PlannedSamples, bare: _BareLoop) -> None:
        super().__init__(samples)
        self.bare = bare
        # Seconds: of kdlab's loop, batches included, and of the bare one
        self.ours_s = self.bare_s = 0.0

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        batches = super().epoch(epoch, done)
        begin = time.perf_counter()
        for batch in batches:
            yield batch
            middle = time.perf_counter()
            self.bare.step(batch.ids, epoch)
            end = time.perf_counter()
            self.ours_s += middle - begin
            self.bare_s += end - middle
            begin = end


def _import_seconds() -> float:
    return float(
        run([sys.executable, "-c", _IMPORT], capture_output=True, check=True).stdout
    )
