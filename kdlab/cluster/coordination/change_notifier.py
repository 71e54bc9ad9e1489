"""Readers wait at the coordinator until their part of the lease table changes."""

import asyncio
import time

from kdlab.papers.edl_dist.leases import LeaseTable


class ChangeNotifier:
    """Wakes the readers of a lease table."""

    def __init__(self, table: LeaseTable) -> None:
        self._table = table
        self._woken: dict[str, int] = {}  # newest version that each student was woken for
        self._wakes: dict[str, asyncio.Event] = {}

    def changed(self) -> None:
        """Wake the readers whose version is older than the table's."""
        for student in self._table.demands:
            newest = self._table.version_of(student)
            if newest > self._woken.get(student, 0):
                self._woken[student] = newest
                self._wake(student)

    def gone(self, student: str) -> None:
        self._woken.pop(student, None)
        self._wake(student)

    def _wake(self, student: str) -> None:
        if student in self._wakes:
            self._wakes.pop(student).set()

    async def wait(self, student: str, version: int, wait_s: float) -> None:
        """Wait until the table has something newer than `version`, or the student is gone."""
        table, deadline = self._table, time.monotonic() + wait_s
        while (
            student in table.demands
            and version >= table.version_of(student)
            and (left := deadline - time.monotonic()) > 0
        ):
            wake = self._wakes.setdefault(student, asyncio.Event())
            try:
                await asyncio.wait_for(wake.wait(), left)
            except TimeoutError:
                return  # nothing changed
