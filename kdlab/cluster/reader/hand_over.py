"""Batches go to the trainer in the order in which they are complete."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine

from kdlab.cluster.reader.batches_under_way import LateWork


class HandOver:
    """Views that take long are made in a thread first; the reader's loop goes on meanwhile.

    Args:
        done: is called with each slot that the trainer may read.
        spawn: carries a coroutine out beside others.
    """

    def __init__(
        self,
        done: Callable[[int], None],
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._done, self._spawn = done, spawn
        self._unmade = deque[tuple[int, LateWork | None]]()  # slots that wait, in order

    def add(self, slot: int, left: LateWork | None) -> None:
        """A slot that is filled but for the work that is `left`."""
        if left is None and not self._unmade:
            self._done(slot)
            return
        self._unmade.append((slot, left))
        if len(self._unmade) == 1:
            self._spawn(self._make())

    async def _make(self) -> None:
        while self._unmade:
            slot, left = self._unmade[0]
            if left is not None:
                await asyncio.to_thread(left)
            self._done(slot)
            self._unmade.popleft()
