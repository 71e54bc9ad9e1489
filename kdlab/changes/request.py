"""What one rank asks of all after a step, and what all of them agree on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """What one rank asks for, or what all agreed on."""

    stop: bool = False  # the user asked for the end; the state is saved before it
    save: bool = False  # a checkpoint
    leave: bool = False  # save, and end this generation of ranks
    pause: bool = False  # stand still until the first rank does not ask for it any more
    # Of what can be tuned, from the next step on, in an order that all ranks know; the first
    # rank's, zeros of the others. None is given where all are 0.
    values: tuple[float, ...] = ()

    @property
    def ends_the_step(self) -> bool:
        """Whether nothing may be under way where it is fulfilled."""
        return self.stop or self.leave or self.pause or self.save

    def numbers(self) -> list[float]:
        """To be summed over all ranks."""
        flags = (self.stop, self.save, self.leave, self.pause)
        return [*map(float, flags), *self.values]

    @classmethod
    def of_all(cls, sums: Sequence[float]) -> Self:
        """From the sums of the numbers of all ranks."""
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
