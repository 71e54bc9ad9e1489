"""Child processes that are watched together: who came up, who spoke, fell silent or died.

Ranks of a group, local models of an ensemble and workers for trials are children of one kind, here
or on the workers of a Dask cluster; what is done about a loss is their own policy, or that of a
`Backoff`. `events` never waits, so a policy decides how often it looks, and a test hands in
children that are only a script.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from kdlab.errors import ClusterError
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.children import RankChild
from kdlab.supervision.heartbeat import Heartbeat

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ChildReady(Generic[Name]):
    """It has come up, or can be told something again."""

    name: Name


@dataclass(frozen=True, slots=True)
class ChildMessage(Generic[Name]):
    """One line of JSON from it."""

    name: Name
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ChildSilent(Generic[Name]):
    """It gave no sign of life for longer than it may; said once."""

    name: Name
    silent_s: float


@dataclass(frozen=True, slots=True)
class ChildLost(Generic[Name]):
    """It has ended, or could not be started; all that it said was told before."""

    name: Name
    exit_code: int | None
    why: str  # with the end of its log
    was_ready: bool
    again_s: float = inf  # until it is started again by itself; infinite: it is given up


ChildEvent = ChildReady[Name] | ChildMessage[Name] | ChildSilent[Name] | ChildLost[Name]


class Supervisor(Generic[Name]):
    """Children by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.children: dict[Name, RankChild] = {}
        self.ready: set[Name] = set()  # those that came up
        self._clock = clock
        self._expected: dict[Name, float] = {}  # since when a sign of life is waited for
        self._kept: dict[Name, tuple[Callable[[], RankChild], Backoff]] = {}
        # When those of these are started that are not there.
        self._due: dict[Name, float] = {}

    def keep(self, name: Name, start: Callable[[], RankChild], again: Backoff) -> None:
        """Have this child from the next look on, started again as often as `again` allows."""
        self._kept[name], self._due[name] = (start, again), -inf

    def drop(self, name: Name) -> None:
        """One that is lost was meant to end."""
        self._due.pop(name, None)

    def add(self, name: Name, child: RankChild) -> None:
        """Watch this child from now on."""
        self.children[name] = child

    def send(self, name: Name, **order: object) -> bool:
        """An order to a child; False when it is gone, which is told as its loss."""
        child = self.children.get(name)
        return child is not None and child.send(**order)

    def expect(self, name: Name) -> None:
        """It has something to do from now on: silence counts."""
        self._expected[name] = self._clock()

    def rest(self, name: Name) -> None:
        """It has nothing to do: it may be silent."""
        self._expected.pop(name, None)

    @property
    def busy(self) -> list[Name]:
        """Those that have something to do."""
        return list(self._expected)

    def events(
        self, patience: Callable[[Heartbeat], float] | None = None
    ) -> Iterator[ChildEvent[Name]]:
        """What happened since the last call; never waits.

        A child that is expected may be silent for `patience` seconds, by its newest sign of
        life; None does not look for silence.
        """
        for name in [name for name, at in self._due.items() if at <= self._clock()]:
            del self._due[name]
            try:
                self.children[name] = self._kept[name][0]()
            except (OSError, ClusterError) as error:
                yield self._lost(name, None, str(error), was_ready=False)
        for name, child in list(self.children.items()):
            alive = child.alive()  # asked first: last words are read after it
            for message in child.messages():
                if "ready" in message:
                    self.ready.add(name)
                    yield ChildReady(name)
                else:
                    yield ChildMessage(name, message)
            if not alive:
                was_ready = name in self.ready
                what = "ended" if was_ready else "ended before it was ready"
                why = child.exit_report(what)
                if name in self._kept:
                    child.stop(0.0)  # closes its pipes
                yield self._lost(name, child.exit_code, why, was_ready=was_ready)
            elif patience is not None and name in self._expected:
                yield from self._silent(name, child.sign(), patience)

    def _lost(
        self, name: Name, exit_code: int | None, why: str, *, was_ready: bool
    ) -> ChildLost[Name]:
        self.children.pop(name, None)
        self.ready.discard(name)
        self.rest(name)
        again_s = inf
        if name in self._kept:
            again_s = self._kept[name][1].wait_s(self._clock())
            self._due[name] = self._clock() + again_s
        return ChildLost(name, exit_code, why, was_ready, again_s)

    def _silent(
        self, name: Name, sign: Heartbeat, patience: Callable[[Heartbeat], float]
    ) -> Iterator[ChildSilent[Name]]:
        silent_s = self._clock() - max(self._expected[name], sign.time)
        if silent_s > patience(sign):
            self.rest(name)
            yield ChildSilent(name, silent_s)

    def signs(self, names: Iterable[Name]) -> dict[Name, Heartbeat]:
        """The newest sign of life of each of these that is there."""
        return {n: self.children[n].sign() for n in names if n in self.children}

    def close(self, within_s: float) -> None:
        """Have all end; those that do not within the time are killed."""
        self._due.clear()
        deadline = self._clock() + within_s
        for child in list(self.children.values()):
            child.send(end=True)
        for child in list(self.children.values()):
            child.stop(max(0.1, deadline - self._clock()))
        self.children.clear()
