"""What every training loop does when somebody asks for a pause, a checkpoint or other values.

The loop asks for `request()` after a step, agrees on it with the other ranks in its own way,
and hands what came of it to `apply`; `pause` stands still. Who trains alone agrees with itself.
"""

from collections.abc import Callable

from kdlab.changes.change import LR_FACTOR
from kdlab.changes.queue import resting, settings_of, with_settings
from kdlab.changes.request import ControlRequest
from kdlab.events.training import Paused, Steered, WentOn
from kdlab.losses.soft_loss import LossSpec
from kdlab.train.job import LoopJob


def alone(request: ControlRequest) -> ControlRequest:
    """How a loop without other ranks agrees."""
    return request


class LoopControl:
    """The control of one loop, on one rank.

    Args:
        job: of the loop.
        loss: of soft labels, whose numbers can be changed beside the learning rate; as the spec
            has it.
        step: the number of steps done.
        worker: number of the local model, of several.
        is_first: the first rank speaks for the user; the others only for themselves.
    """

    def __init__(
        self,
        job: LoopJob,
        loss: LossSpec | None,
        step: Callable[[], int],
        *,
        worker: int | None = None,
        is_first: bool = True,
    ) -> None:
        self.job, self.steering, self.is_first = job, job.steering, is_first
        self._step, self._worker = step, worker
        self._begin = settings_of(loss)  # in an order that all ranks know
        self.loss, self.settings = loss, dict(self._begin)  # as they are

    @property
    def lr_factor(self) -> float:
        return self.settings[LR_FACTOR]

    def request(self, *, save: bool = False) -> ControlRequest:
        """What this rank wants of all; a checkpoint that was asked for is wanted once."""
        self.steering.look()
        return ControlRequest(
            stop=self.job.stop(),
            save=self.is_first and (self.take_checkpoint_order() or save),
            leave=self.job.leave(),
            pause=self.is_first and self.steering.paused,
            settings=self._wanted(),
        )

    def take_checkpoint_order(self) -> bool:
        """Whether somebody asked for a checkpoint since the last call."""
        asked, self.steering.wants_checkpoint = self.steering.wants_checkpoint, False
        return asked

    def first_settings(self) -> ControlRequest:
        """What was set before holds from the first step on, also after a resume."""
        self.steering.look(now=True)
        return self.wanted_settings()

    def wanted_settings(self) -> ControlRequest:
        """Settings alone, as the orders that were read have them."""
        return ControlRequest(settings=self._wanted())

    def _wanted(self) -> tuple[float, ...]:
        found = tuple(self.steering.settings(self._begin))
        return found if self.is_first else (0.0,) * len(found)

    def apply(self, agreed: ControlRequest) -> bool:
        """Settings for the next step on; whether any of them is new."""
        wanted = dict(zip(self._begin, agreed.settings, strict=False))
        if not any(agreed.settings) or wanted == self.settings:
            return False
        values = {k: new for k, new in wanted.items() if new != self.settings[k]}
        self.loss, self.settings = with_settings(self.loss, wanted), wanted
        if self.is_first:
            step, worker = self._step(), self._worker
            self.job.emit(Steered(step=step, worker=worker, values=values))
        return True

    def pause(
        self,
        *sources: object,
        agree: Callable[[ControlRequest], ControlRequest],
        act: Callable[[ControlRequest], None],
    ) -> None:
        """Stand still until the first rank says go on, or any rank stop or leave.

        All ranks agree in it, so that they leave it together; a rank that is lost breaks it.
        Sources stand still too; `act` gets what all agreed on: settings, a checkpoint.
        """
        if self.is_first:
            self.job.emit(Paused(step=self._step(), worker=self._worker))
        with resting(*sources) as wait:
            while True:
                wait()
                self.job.pulse(self._step())
                now = agree(self.request())
                act(now)
                if now.stop or now.leave or not now.pause:
                    break
        if self.is_first:
            self.job.emit(WentOn(step=self._step(), worker=self._worker))
