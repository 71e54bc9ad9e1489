"""What a pool starts and ends: teachers here, or machines that host some each (Dask's, pods)."""

from collections.abc import Sequence
from typing import ClassVar

from kdlab.errors import ClusterError
from kdlab.supervision.children import Child


class Machines:
    """None, as they are: somebody else starts the teachers of the pool.

    Those that can be had answer the same; their unit is what `PoolSize` counts.
    """

    adjustable: ClassVar[bool] = False  # add, drain and kill are possible
    outlive_scheduler: ClassVar[bool] = True  # they wait for one at the same address
    at_once: ClassVar[int] = 1 << 30  # that may start at the same time
    address: str = ""  # of a scheduler that they bring
    children: Sequence[Child] = ()  # of this process, where they are some

    def wanted(self) -> int:
        """How many were asked for, those that wait in a queue too."""
        return 0

    def grow(self, count: int) -> None:
        """Ask for so many more; raises ClusterError where they cannot be had."""
        raise ClusterError(
            "teachers of this pool are not started from here, see kdlab teacher"
        )

    def add(self) -> int | None:
        """One more, because somebody asked; its pid where it is a process of this one."""
        self.grow(1)
        return None

    def withdraw(self, names: Sequence[str]) -> None:
        """Give these back; their teachers answer what they hold first."""

    def has(self, name: str, pid: int) -> bool:
        """Whether a teacher with this name and pid is one of theirs that lives."""
        return any(child.pid == pid and child.alive() for child in list(self.children))

    def lost(self) -> bool:
        """Whether some ended since the last look that were not meant to."""
        return False

    def hopeless(self) -> None:
        """Raise ClusterError, with the reason, where no teacher can come any more."""
        if self.children and not any(child.alive() for child in self.children):
            raise ClusterError(self.children[0].exit_report("ended before it could serve"))

    def close(self, *, scheduler_gone: bool = False) -> None:
        """Give all back; never raises, for there is nothing else to do."""
        for child in self.children:
            child.stop()
