"""Which numbers each member of a run lets be set, with the spec's own ranges."""

from collections.abc import Iterator
from dataclasses import replace

from kdlab.changes.change import LR_FACTOR
from kdlab.changes.queue import settings_of
from kdlab.config.knob import Knob
from kdlab.config.spec import Range, Spec, ranges_of
from kdlab.experiment.spec import ExperimentSpec, Member

_LR = Range(gt=0, le=100)


def knobs_of(spec: ExperimentSpec, member: Member) -> Iterator[Knob]:
    """At the start of its training.

    The learning rate always; weights and temperature of the loss where the member learns from
    soft labels; lt and ut where these are served to one student.
    """
    taught = member.source.needs_teacher != "none" and spec.method.steers_loss
    values = settings_of(spec.loss if taught else None)
    of_loss = ranges_of(type(spec.loss))
    free = type(spec.loss).cross_faults is Spec.cross_faults
    for name, value in values.items():
        if name == LR_FACTOR:
            yield Knob(name=name, value=value, range=_LR)
        else:
            allowed = of_loss.get(name.removeprefix("loss."), Range())
            yield Knob(name=name, value=value, range=allowed, free=free)
    if spec.method.steers_thresholds:
        for knob in member.source.adjustable(spec.train.batch):
            below = knob.below and f"soft_labels.{knob.below}"
            yield replace(knob, name=f"soft_labels.{knob.name}", below=below)
