"""What somebody changes about a training while it goes on: pause, weights, learning rate.

The loop looks for orders between steps, a few times a second. All ranks of a student act after
the same step: rank 0 says what holds from there on.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from kdlab.changes.change import (
    LR_FACTOR,
    ChangeSettings,
    GoOn,
    Order,
    OrderReader,
    Pause,
    SaveCheckpoint,
)
from kdlab.losses.soft_loss import LossSpec
from kdlab.soft_labels.source import Steerable

_LOSS, _SOURCE = "loss.", "soft_labels."
THRESHOLDS = ("lt", "ut")
_EVERY_S = 0.1
_PAUSED_S = 0.05


def settings_of(loss: LossSpec | None) -> dict[str, float]:
    """What can be turned in every step, in an order that all ranks know; as it is now."""
    found = {LR_FACTOR: 1.0}
    if loss is not None:
        for field in fields(loss):
            value = getattr(loss, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[_LOSS + field.name] = float(value)
    return found


def with_settings(loss: LossSpec | None, values: Mapping[str, float]) -> LossSpec | None:
    """The loss with these values."""
    if loss is None:
        return None
    own = {k.removeprefix(_LOSS): v for k, v in values.items() if k.startswith(_LOSS)}
    # Whole numbers stay whole: a loss may count with them.
    return replace(loss, **{k: type(getattr(loss, k))(v) for k, v in own.items()})


class Steering:
    """The orders for one member of a run; without a path there are none.

    Orders to pause or to save that are older than `since` belong to an earlier session; values
    that were set still hold.
    """

    def __init__(self, path: Path | None, member: str, since: float = 0.0) -> None:
        self._read = None if path is None else OrderReader(path)
        self.member, self._since = member, since
        self.paused = self.wants_checkpoint = False
        self.values: dict[str, float] = {}  # as they were set last
        self._looked = -math.inf

    def look(self, *, now: bool = False) -> None:
        """Read what is new, if the last look is a moment ago."""
        if self._read is None:
            return
        clock = time.monotonic()
        if not now and clock - self._looked < _EVERY_S:
            return
        self._looked = clock
        for order in self._read():
            if order.member == self.member:
                self._take(order)

    def _take(self, order: Order) -> None:
        if isinstance(order, ChangeSettings):
            self.values |= order.set
        if order.time < self._since:
            return
        match order:
            case Pause():
                self.paused = True
            case GoOn():
                self.paused = False
            case SaveCheckpoint():
                self.wants_checkpoint = True

    def settings(self, begin: Mapping[str, float]) -> list[float]:
        """Those of `settings_of`, in their order."""
        return [self.values.get(name, value) for name, value in begin.items()]

    def refuse(self, thresholds: Mapping[str, float]) -> None:
        """The source cannot take these."""
        for name in thresholds:
            self.values.pop(_SOURCE + name, None)

    def thresholds(self) -> dict[str, float]:
        """The served source's lt and ut, where they were set."""
        names = [_SOURCE + name for name in THRESHOLDS]
        return {n.removeprefix(_SOURCE): self.values[n] for n in names if n in self.values}


@contextmanager
def resting(*sources: object) -> Iterator[Callable[[], None]]:
    """A pause of a training: its sources stand still, and go on afterwards.

    What is given waits a moment and lets them pass on what is news.
    """
    still = [source for source in sources if isinstance(source, Steerable)]

    def wait() -> None:
        time.sleep(_PAUSED_S)  # between looks; this is what a pause is
        for source in still:
            source.look()

    for source in still:
        source.pause(paused=True)
    try:
        yield wait
    finally:
        for source in still:
            source.pause(paused=False)
