"""What every training loop does when somebody asks for a pause, a checkpoint or other values.

The loop asks for `request()` after a step, agrees on it with the other ranks in its own way,
and hands what came of it to `apply`; `pause` stands still. Who trains alone agrees with itself.
"""

from collections.abc import Callable, Mapping

from kdlab.control.orders import LR_FACTOR
from kdlab.control.request import ControlRequest
from kdlab.control.steering import Steering, changed, resting
from kdlab.events.training import Paused, Steered, WentOn


def alone(request: ControlRequest) -> ControlRequest:
    """How a loop without other ranks agrees."""
    return request


class LoopControl:
    """The control of one loop, on one rank.

    Args:
        settings: what can be changed, as the spec has it, in an order that all ranks know.
        leave: whether this generation of ranks is to end.
        pulse: a sign of life, with the step.
        is_first: the first rank speaks for the user; the others only for themselves.
    """

    def __init__(
        self,
        steering: Steering,
        settings: Mapping[str, float],
        *,
        step: Callable[[], int],
        emit: Callable[[Steered | Paused | WentOn], None],
        stop: Callable[[], bool],
        leave: Callable[[], bool] = lambda: False,
        pulse: Callable[[int], None] = lambda step: None,
        is_first: bool = True,
    ) -> None:
        self.steering, self.is_first = steering, is_first
        self._begin = dict(settings)  # as the spec has them
        self._now = tuple(settings.values())  # as they are
        self._step, self._emit = step, emit
        self._stop, self._leave, self._pulse = stop, leave, pulse

    @property
    def settings(self) -> dict[str, float]:
        """As they are."""
        return dict(zip(self._begin, self._now, strict=True))

    @property
    def lr_factor(self) -> float:
        return self.settings[LR_FACTOR]

    def request(self, *, save: bool = False) -> ControlRequest:
        """What this rank wants of all; a checkpoint that was asked for is wanted once."""
        self.steering.look()
        return ControlRequest(
            stop=self._stop(),
            save=self.is_first and (self.take_checkpoint_order() or save),
            leave=self._leave(),
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
        if not any(agreed.settings) or agreed.settings == self._now:
            return False
        values = changed(list(self._begin), self._now, agreed.settings)
        self._now = agreed.settings
        if self.is_first:
            self._emit(Steered(step=self._step(), values=values))
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
            self._emit(Paused(step=self._step()))
        with resting(*sources) as wait:
            while True:
                wait()
                self._pulse(self._step())
                now = agree(self.request())
                act(now)
                if now.stop or now.leave or not now.pause:
                    break
        if self.is_first:
            self._emit(WentOn(step=self._step()))
