"""What kdlab costs over a bare PyTorch loop that does the same work, and at import.

Both loops train the same student on the same views in the same order with the same
optimiser, schedule and weight decay; only the bookkeeping differs. Repeats alternate, so
that a drift of the machine meets both.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from kdlab.data.digits import Digits
from kdlab.data.samples import PlannedSamples, planned
from kdlab.errors import RunFailed
from kdlab.events.log import EventLog, MemberLog
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import Normalised
from kdlab.report.figures import Figure, Report, Say, figure, over, report
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.train.optimizers import make_optimizer
from kdlab.train.recipe import Recipe
from kdlab.train.schedules import lr_at
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentJob

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
_ORDERS = {  # to a run that goes on
    "control": ("control", "last", "checkpoint"),
    "control_set": ("control", "last", "set", "loss.temperature=3"),
    "control_refused": ("control", "last", "set", "soft_labels.lt=1e9"),
    "runs_meanwhile": ("runs",),
}
_RUN = ("run", "smoke/served", "train.epochs=1000000", "tracking.enabled=false", "--detach")
_BEGUN_S = 120.0
_IMPORT = (
    "import time; t = time.perf_counter(); import kdlab; print(time.perf_counter() - t)"
)


def measure(repeats: int = 15, say: Say = lambda line: None) -> Report:
    """`n_training_over_bare_loop` (samples/s over samples/s), `import_s`, CPU of small commands."""
    torch.set_num_threads(1)
    # Steps of a few milliseconds: the shorter the step, the more bookkeeping weighs.
    recipe = Recipe(epochs=4, batch=64, threads=1, evaluate_every=4, device="cpu")
    spec = CifarResNet(depth=8, width=(8, 8, 12, 16))
    digits = Digits(size=8)
    data = digits.load()
    samples = planned(data, digits.to_dict(), batch=64, seed=0, epochs=4)
    ours, bare = list[float](), list[float]()
    for repeat in range(-1, repeats):  # the first warms up and is not counted
        order = (_kdlab_rate, _bare_rate) if repeat % 2 == 0 else (_bare_rate, _kdlab_rate)
        rates = {measured: measured(recipe, spec, samples) for measured in order}
        if repeat >= 0:
            ours.append(rates[_kdlab_rate])
            bare.append(rates[_bare_rate])
            say(
                f"repeat {repeat + 1}/{repeats}: kdlab over bare loop {ours[-1] / bare[-1]:.3f}"
            )
    imports = [_import_seconds() for _ in range(5)]
    return report(
        "overhead",
        [
            figure("n_training_over_bare_loop", over(ours, bare), "ratio", ">= 0.97"),
            figure("n_training_samples_per_second", ours, "samples/s"),
            figure("bare_loop_samples_per_second", bare, "samples/s"),
            figure("step_ms", 64_000 / median(bare), "ms"),
            figure("import_s", imports, "s", "<= 0.4"),
            *_small_commands(say),
        ],
    )


def _small_commands(say: Say) -> list[Figure]:
    """CPU seconds of what should answer at once, the second time it is asked."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"KDLAB_HOME": folder, "KDLAB_RUNS": folder}
        for name, words in _SMALL.items():
            found.append(_asked(name, words, env, say))
        with _going_on(env):
            for name, words in _ORDERS.items():
                found.append(_asked(name, words, env, say))
    return found


def _asked(name: str, words: Sequence[str], env: Mapping[str, str], say: Say) -> Figure:
    spent = [_cpu_seconds(words, env) for _ in range(_ASKED + 1)][1:]
    say(f"{name}: {median(spent):.2f} s of CPU")
    return figure(f"cpu_s/{name}", spent, "s", "<= 0.5")


@contextmanager
def _going_on(env: Mapping[str, str]) -> Iterator[None]:
    """A run that trains meanwhile.

    Raises:
        RunFailed: it does not begin.
    """
    kdlab = (sys.executable, "-m", "kdlab")
    subprocess.run((*kdlab, *_RUN), env=env, capture_output=True, check=True)
    try:
        deadline = time.monotonic() + _BEGUN_S
        begins = (*kdlab, "control", "last", "set", "lr_factor=1")
        while (said := subprocess.run(begins, env=env, capture_output=True)).returncode:  # noqa: PLW1510
            if time.monotonic() > deadline:
                raise RunFailed(f"The run did not begin: {said.stderr.decode()}")
            time.sleep(0.2)
        yield
    finally:
        subprocess.run((*kdlab, "stop", "last"), env=env, capture_output=True, check=True)


def _cpu_seconds(words: Sequence[str], env: Mapping[str, str]) -> float:
    """Seconds that kdlab takes with these words, user and system."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    subprocess.run(
        [sys.executable, "-m", "kdlab", *words], env=env, capture_output=True, check=False
    )
    return spent() - before


def _model(spec: CifarResNet, samples: PlannedSamples) -> Normalised:
    torch.manual_seed(0)
    return spec.build(samples.classes, samples.data.shape[0])


def _kdlab_rate(recipe: Recipe, spec: CifarResNet, samples: PlannedSamples) -> float:
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(Path(folder) / "events.jsonl")
        job = StudentJob(
            recipe=recipe,
            model_spec=spec,
            model=_model(spec, samples),
            samples=samples,
            loss=None,
            seed=0,
            folder=Path(folder),
            spec_hash="bench",
            emit=MemberLog(log, "bench").emit,
        )
        rate = StudentLoop(job).run(NoTeacherSource(samples)).samples_per_second
        log.close()
    return rate


def _bare_rate(recipe: Recipe, spec: CifarResNet, samples: PlannedSamples) -> float:
    """What one writes by hand: no events, counts, checkpoints or stop requests."""
    model = _model(spec, samples)
    optimizer = make_optimizer(recipe, model)
    model.train()
    steps_per_epoch, step, seen = samples.plan.batches, 0, 0
    begin = time.perf_counter()
    for epoch in range(recipe.epochs):
        for ids in samples.batches(epoch):
            views = torch.from_numpy(samples.views(ids, epoch))
            labels = torch.from_numpy(samples.labels(ids))
            for group in optimizer.param_groups:
                group["lr"] = lr_at(recipe, step / steps_per_epoch, steps_per_epoch)
            loss = cross_entropy(model(views), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            seen += len(ids)
    return seen / (time.perf_counter() - begin)


def _import_seconds() -> float:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
    )
    return float(done.stdout)
