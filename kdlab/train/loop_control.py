"""What every training loop does when somebody asks for a pause, a checkpoint or other values.

The loop asks for `request()` after a step, agrees on it with the other ranks in its own way,
and hands what came of it to `apply`; `pause` stands still. Who trains alone agrees with itself.
"""

import time
from collections.abc import Callable
from dataclasses import fields, replace

from kdlab.changes.change import LR_FACTOR
from kdlab.changes.request import ChangeRequest
from kdlab.changes.tunable import Tunable
from kdlab.config.spec import Range, Spec, ranges_of
from kdlab.events.training import Continued, Paused, SettingsChanged
from kdlab.losses.soft_loss import LossSpec
from kdlab.soft_labels.source import Steerable
from kdlab.train.job import LoopJob

TunedValues = dict[str, float]
_LOSS = "loss."
_PAUSED_S = 0.05


def in_each_step(loss: LossSpec | None) -> list[Tunable]:
    """What can be tuned in every step, in an order that all ranks know; as it is now."""
    found = [Tunable(name=LR_FACTOR, value=1.0, range=Range(gt=0, le=100))]
    if loss is None:
        return found
    ranges, free = ranges_of(type(loss)), type(loss).cross_faults is Spec.cross_faults
    for name in (field.name for field in fields(loss)):
        value, range_ = getattr(loss, name), ranges.get(name, Range())
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(
                Tunable(name=_LOSS + name, value=float(value), range=range_, free=free)
            )
    return found


def alone(request: ChangeRequest) -> ChangeRequest:
    """How a loop without other ranks agrees."""
    return request


class LoopControl:
    """The control of one loop, on one rank.

    Args:
        job: of the loop.
        loss: of soft labels, whose numbers can be changed beside the learning rate; as the spec
            has it.
        step: the number of steps done.
        before: told of all numbers as they are and as they will be, before others hold.
        worker: number of the local model, of several.
        is_first: the first rank speaks for the user; the others only for themselves.
    """

    def __init__(
        self,
        job: LoopJob,
        loss: LossSpec | None,
        step: Callable[[], int],
        *,
        before: Callable[[TunedValues, TunedValues], None] = lambda now, then: None,
        worker: int | None = None,
        is_first: bool = True,
    ) -> None:
        self.job, self.changes, self.is_first = job, job.changes, is_first
        self._step, self._before, self._worker = step, before, worker
        # In an order that all ranks know.
        self._begin = {one.name: one.value for one in in_each_step(loss)}
        self.loss, self.values = loss, dict(self._begin)  # as they are

    @property
    def lr_factor(self) -> float:
        return self.values[LR_FACTOR]

    def request(self, *, save: bool = False) -> ChangeRequest:
        """What this rank wants of all; a checkpoint that was asked for is wanted once."""
        values = self.wanted_values().values
        return ChangeRequest(
            stop=self.job.stop(),
            save=self.is_first and (self.changes.take_checkpoint() or save),
            leave=self.job.leave(),
            pause=self.is_first and self.changes.paused,
            values=values,
        )

    def wanted_values(self, *, now: bool = False) -> ChangeRequest:
        """Values alone; before the first step, `now`, those that were set before a resume."""
        of = self.changes.look(now=now).values
        found = [of.get(name, value) for name, value in self._begin.items()]
        return ChangeRequest(values=tuple(found if self.is_first else [0.0] * len(found)))

    def news(self, agreed: ChangeRequest) -> TunedValues:
        """All values as they are to be, if any of them is another one."""
        wanted = dict(zip(self._begin, agreed.values, strict=False))
        return wanted if any(agreed.values) and wanted != self.values else {}

    def apply(self, agreed: ChangeRequest) -> bool:
        """Values for the next step on; whether any of them is new."""
        if not (wanted := self.news(agreed)):
            return False
        if self.is_first:
            self._before(self.values, wanted)
        new = {k: value for k, value in wanted.items() if value != self.values[k]}
        self.values = wanted
        if self.loss is not None:
            own = {k.removeprefix(_LOSS): v for k, v in wanted.items() if k != LR_FACTOR}
            # Whole numbers stay whole: a loss may count with them.
            kept = {k: type(getattr(self.loss, k))(value) for k, value in own.items()}
            self.loss = replace(self.loss, **kept)
        if self.is_first:
            self.job.emit(
                SettingsChanged(step=self._step(), worker=self._worker, values=new)
            )
        return True

    def pause(
        self,
        *sources: object,
        agree: Callable[[ChangeRequest], ChangeRequest],
        act: Callable[[ChangeRequest], None],
    ) -> None:
        """Stand still until the first rank says go on, or any rank stop or leave.

        All ranks agree in it, so that they leave it together; a rank that is lost breaks it.
        Sources stand still too; `act` gets what all agreed on: values, a checkpoint.
        """
        if self.is_first:
            self.job.emit(Paused(step=self._step(), worker=self._worker))
        still = [source for source in sources if isinstance(source, Steerable)]
        for source in still:
            source.pause(paused=True)
        try:
            while True:
                time.sleep(_PAUSED_S)  # between looks; this is what a pause is
                for source in still:
                    source.look()
                self.job.pulse(self._step())
                now = agree(self.request())
                act(now)
                if now.stop or now.leave or not now.pause:
                    break
        finally:
            for source in still:
                source.pause(paused=False)
        if self.is_first:
            self.job.emit(Continued(step=self._step(), worker=self._worker))
