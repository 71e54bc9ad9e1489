"""Requests of one rank to all after a step, and their agreement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """Request of one rank, or the agreement of all."""

    stop: bool = False  # end the run, at the user's request, after saving
    save: bool = False  # a checkpoint
    leave: bool = False  # save, and end this generation of ranks
    pause: bool = False  # until the first rank no longer requests it
    # Values of all tunables from the next step on, in an order that all ranks know: those of the
    # first rank, zeros of the others. If all are 0, there are none.
    values: tuple[float, ...] = ()

    @property
    def ends_the_step(self) -> bool:
        """True where no asynchronous work may be pending when it is carried out."""
        return self.stop or self.leave or self.pause or self.save

    def numbers(self) -> list[float]:
        """Return the numbers to be summed over all ranks."""
        flags = (self.stop, self.save, self.leave, self.pause)
        return [*map(float, flags), *self.values]

    @classmethod
    def from_sums(cls, sums: Sequence[float]) -> Self:
        """Make the agreement from the sums of the `numbers` of all ranks."""
        stop, save, leave, pause, *values = sums
        return cls(stop > 0, save > 0, leave > 0, pause > 0, tuple(values))

    def __or__(self, later: "ChangeRequest") -> "ChangeRequest":
        return ChangeRequest(
            self.stop or later.stop,
            self.save or later.save,
            self.leave or later.leave,
            self.pause or later.pause,
            later.values if any(later.values) else self.values,
        )
