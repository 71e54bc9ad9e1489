"""For how long a student has been without any teacher that answers.

Beyond the paper, whose students wait for ever. Teachers that come and go without a single
answer are no teachers. A student that still has labels, or needs no more, misses nobody.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Absence:
    wait_s: float  # without any teacher, before the run fails
    since: float | None  # without one; None: there are some
    dry_since: float  # the first moment without a teacher since the last answer
    is_dry: bool = True

    def on_answer(self) -> None:
        self.is_dry = False

    def on_teachers(self, there_are: bool, time: float) -> bool:
        """Whether the last one is gone by this."""
        if there_are:
            self.since = None
            return False
        if self.since is not None:
            return False
        self.dry_since = self.dry_since if self.is_dry else time
        self.is_dry = True
        self.since = self.dry_since
        return True

    def on_tick(self, fed: bool, time: float) -> bool:
        """Whether the student misses teachers for too long; `fed`: it misses nobody."""
        if fed:
            self.dry_since = time
        if self.since is None:
            return False
        if fed:
            self.since = time
        return not fed and time - self.since > self.wait_s
