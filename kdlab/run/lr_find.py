"""Which learning rate a student can take: a short training whose rate grows at every step.

The range test of Smith, "Cyclical Learning Rates" (arXiv:1506.01186), section 3.3, over an
exponential range as fastai made it known.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

import torch

from kdlab.data.samples import PlannedSamples
from kdlab.errors import BadInput
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec
from kdlab.report import chart, page
from kdlab.report.chart import Panel
from kdlab.run.rates import threads_of
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import Batch, LocalSource, SourceContext
from kdlab.train.teacher import prepared

_SMOOTH = 0.9  # of the mean of losses
_BLOWN_UP = 4.0  # times the least loss: the rest says nothing
_LEAST = 10  # steps
_SPAN = {"sgd": (1e-4, 10.0), "adamw": (1e-6, 1.0)}  # first and last rate
_SPAN_OF_OTHERS = (1e-6, 10.0)


@dataclass(frozen=True, slots=True)
class LrFinder:
    """A curve in a notebook, the suggestion as a number."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]  # smoothed
    suggestion: float  # where the loss falls steepest
    highest: float  # where it was least: beyond, training becomes unstable
    taught: bool  # by the teacher; else by true labels alone

    def __repr__(self) -> str:
        how = "with the teacher's soft labels" if self.taught else "on true labels alone"
        return (
            f"lr about {self.suggestion:.2g} (the loss falls steepest there, and is least at "
            f"{self.highest:.2g}), {how}: train.lr={self.suggestion:.2g}"
        )

    def _repr_html_(self) -> str:
        points = [(math.log10(lr), y) for lr, y in zip(self.lrs, self.losses, strict=True)]
        chosen = [
            (math.log10(self.suggestion), y) for y in (min(self.losses), max(self.losses))
        ]
        panel = Panel(
            "loss", {"loss": points, f"suggested {self.suggestion:.2g}": chosen},
            across="learning rate, power of ten",
        )  # fmt: skip
        return (
            page.image(chart.svg([panel]), "loss over learning rate")
            + f"<div>{self!r}</div>"
        )


def lr_find(
    spec: ExperimentSpec, steps: int, say: Callable[[str], None] = lambda line: None
) -> LrFinder:
    """See `Experiment.lr_find`.

    Raises:
        BadInput: too few steps.
    """
    if steps < _LEAST:
        raise BadInput(f"{steps} steps are too few to see a slope; take {_LEAST} at least.")
    train = replace(
        spec.train,
        schedule="constant",
        schedule_options={},
        drop_lr_at=(),
        warmup_epochs=0.0,
        compile=False,
    )
    own = TrainingSetup(_asked_here(replace(spec, train=train)))
    member = own.spec.members()[-1]
    with (
        threads_of(train),
        tempfile.TemporaryDirectory() as folder,
        torch.random.fork_rng(),
    ):
        loop = own.loop(member, Path(folder), lambda event: None)
        source, taught = _source(own, Path(folder), loop.job.samples)
        say(f"{steps} steps with a learning rate that grows")
        loop.model.train()
        first, last = _SPAN.get(train.optimizer, _SPAN_OF_OTHERS)
        lrs: list[float] = []
        losses: list[float] = []  # smoothed
        mean = 0.0
        for number, batch in enumerate(islice(_endless(source), steps)):
            lr = first * (last / first) ** (number / (steps - 1))
            loss = float(loop.step(batch, len(batch.ids), lr_factor=lr / train.lr))
            mean = _SMOOTH * mean + (1 - _SMOOTH) * loss
            if not math.isfinite(loss):
                break
            lrs.append(lr)
            losses.append(mean / (1 - _SMOOTH ** (number + 1)))  # it began at 0
            if losses[-1] > _BLOWN_UP * min(losses):
                break
        source.close()
    return _found(lrs, losses, taught)


def _asked_here(spec: ExperimentSpec) -> ExperimentSpec:
    """The same, with a teacher that is asked in this process for whatever is more than logits."""
    if not (spec.features or spec.soft_labels.gives_hidden):
        return spec
    known = [prepared(one) for one in spec.teachers()]
    if None in known or not known:
        return replace(spec, features=(), soft_labels=NoTeacher(), compare=())
    return replace(spec, soft_labels=InProcess(), compare=())


def _source(
    own: TrainingSetup, folder: Path, samples: PlannedSamples
) -> tuple[LocalSource, bool]:
    """With the teacher, if the experiment has one and its weights are there."""
    known = [prepared(one) for one in own.spec.teachers()]
    ready = [one for one in known if one is not None]
    wanted = any(m.source.needs_teacher != "none" for m in own.spec.members())
    taught = wanted and bool(ready) and len(ready) == len(known)
    context = SourceContext(
        samples=samples,
        student="lr_find",
        folder=folder,
        load_teacher=(
            own.load_teacher
            if own.spec.features
            else lambda: own.together(tuple(ready)).load(
                own.data, own.spec.train.chosen_device()
            )
        ),
    )
    spec = InProcess() if taught else NoTeacher()
    source = spec.build(context)
    assert isinstance(source, LocalSource)
    return source, taught


def _endless(source: LocalSource) -> Iterator[Batch]:
    for epoch in count():
        yield from source.epoch(epoch, frozenset())


def _found(lrs: list[float], losses: list[float], taught: bool) -> LrFinder:
    if len(lrs) < _LEAST:
        raise BadInput(
            f"The loss is no number after {len(lrs)} steps: the first learning rate is too high "
            "already. Look at the data (kdlab data) and the normalisation of the student."
        )
    least = min(range(len(losses)), key=lambda k: losses[k])
    half = max(1, len(losses) // 20)  # slopes over so many steps on both sides
    slopes = {
        k: losses[k + half] - losses[k - half]
        for k in range(half, max(half + 1, min(least, len(losses) - half)))
        if k + half < len(losses)
    }
    steepest = min(slopes, key=lambda k: slopes[k]) if slopes else least
    return LrFinder(tuple(lrs), tuple(losses), lrs[steepest], lrs[least], taught)
