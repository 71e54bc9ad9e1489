"""Machines of a pool: local teachers, or machines that host several each (Dask's, pods)."""

from collections.abc import Sequence
from typing import ClassVar

from kdlab.errors import ClusterError
from kdlab.supervision.children import Child


class Machines:
    """No machines: somebody else starts the teachers of the pool.

    Subclasses start machines; `PoolSize` counts in their unit.
    """

    adjustable: ClassVar[bool] = False  # its machines can be added, drained and killed
    outlive_scheduler: ClassVar[bool] = True  # they reconnect at the same address
    at_once: ClassVar[int] = 1 << 30  # most that start at the same time
    address: str = ""  # of a scheduler that comes with them
    children: Sequence[Child] = ()  # where machines are processes of this one

    def wanted(self) -> int:
        """Number of requested machines, including those in a queue."""
        return 0

    def grow(self, count: int) -> None:
        """Request `count` more; raises ClusterError where that fails."""
        raise ClusterError(
            "teachers of this pool are not started from here, see kdlab teacher"
        )

    def add(self) -> int | None:
        """Add one at a user's request; returns its pid where it is a process of this one."""
        self.grow(1)
        return None

    def withdraw(self, names: Sequence[str]) -> None:
        """Give these back, after their teachers have answered open requests."""

    def has(self, name: str, pid: int) -> bool:
        """True where a teacher with this name and pid is alive on one of these machines."""
        return any(child.pid == pid and child.alive() for child in list(self.children))

    def lost(self) -> bool:
        """True where a machine was lost since the last call."""
        return False

    def check_hope(self) -> None:
        """Raise ClusterError, with the reason, where no teacher can come up."""
        if self.children and not any(child.alive() for child in self.children):
            raise ClusterError(self.children[0].exit_report("ended before it could serve"))

    def close(self, *, scheduler_gone: bool = False) -> None:
        """Give all back; never raises, because nothing else could be done."""
        for child in self.children:
            child.stop()
