"""Control of every training loop by a user: pauses, checkpoints and tuned values.

After a step the loop takes `request()`, agrees on it with the other ranks in its own way, and
passes the agreement to `apply`; `pause` waits. A loop with one rank uses `agree_with_nobody`.
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
    """List the tunables of a step with their values, in an order that all ranks know."""
    tunables = [Tunable(name=LR_FACTOR, value=1.0, range=Range(gt=0, le=100))]
    if loss is None:
        return tunables
    ranges, free = ranges_of(type(loss)), type(loss).cross_faults is Spec.cross_faults
    for name in (field.name for field in fields(loss)):
        value, range_ = getattr(loss, name), ranges.get(name, Range())
        if isinstance(value, int | float) and not isinstance(value, bool):
            tunables.append(
                Tunable(name=_LOSS + name, value=float(value), range=range_, free=free)
            )
    return tunables


def agree_with_nobody(request: ChangeRequest) -> ChangeRequest:
    """Agree on a request in a loop without other ranks."""
    return request


class LoopControl:
    """Control of one loop, on one rank.

    Args:
        job: of the loop.
        loss: of soft labels, as in the spec; its numbers can be tuned beside the learning rate.
        step: returns the number of steps done.
        before: called with the current and the new values, before these take effect.
        worker: number of the local model, if there are several.
        is_first: True for the first rank, which carries the user's requests.
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
        """Return the request of this rank; a requested checkpoint is in it once."""
        values = self.wanted_values().values
        return ChangeRequest(
            stop=self.job.stop(),
            save=self.is_first and (self.changes.take_checkpoint() or save),
            leave=self.job.leave(),
            pause=self.is_first and self.changes.paused,
            values=values,
        )

    def wanted_values(self, *, now: bool = False) -> ChangeRequest:
        """Return a request with values only; `now`, before the first step, polls at once."""
        current = self.changes.poll(now=now).values
        values = [current.get(name, value) for name, value in self._begin.items()]
        return ChangeRequest(values=tuple(values if self.is_first else [0.0] * len(values)))

    def news(self, agreed: ChangeRequest) -> TunedValues:
        """Return all new values, or nothing if none differs."""
        wanted = dict(zip(self._begin, agreed.values, strict=False))
        return wanted if any(agreed.values) and wanted != self.values else {}

    def apply(self, agreed: ChangeRequest) -> bool:
        """Set the values for the next step on; return whether any is new."""
        if not (wanted := self.news(agreed)):
            return False
        if self.is_first:
            self._before(self.values, wanted)
        new = {k: value for k, value in wanted.items() if value != self.values[k]}
        self.values = wanted
        if self.loss is not None:
            weights = {
                k.removeprefix(_LOSS): v for k, v in wanted.items() if k != LR_FACTOR
            }
            # Integers stay integers: a loss may count with them.
            typed = {k: type(getattr(self.loss, k))(v) for k, v in weights.items()}
            self.loss = replace(self.loss, **typed)
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
        """Wait until the first rank ends the pause, or any rank stops or leaves.

        All ranks agree in every turn, so that they end it together; a lost rank breaks it.
        Sources pause too; `act` gets each agreement: values, a checkpoint.
        """
        if self.is_first:
            self.job.emit(Paused(step=self._step(), worker=self._worker))
        still = [source for source in sources if isinstance(source, Steerable)]
        for source in still:
            source.pause(paused=True)
        try:
            while True:
                time.sleep(_PAUSED_S)  # between polls
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
