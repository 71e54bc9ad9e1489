"""Watch several child processes: which came up, sent a message, fell silent or died.

Ranks of a group, local models of an ensemble and workers for trials are all children, local or on
the workers of a Dask cluster. Their owner, or a `Backoff`, decides what to do about a loss.
`events` never waits, so the owner decides how often to poll, and tests hand in scripted children.
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
    """The child is up, or takes orders again."""

    name: Name


@dataclass(frozen=True, slots=True)
class ChildMessage(Generic[Name]):
    """One line of JSON from the child."""

    name: Name
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ChildSilent(Generic[Name]):
    """No heartbeat for longer than `patience` allows; reported once."""

    name: Name
    silent_s: float


@dataclass(frozen=True, slots=True)
class ChildLost(Generic[Name]):
    """The child ended or could not be started; all its messages came before."""

    name: Name
    exit_code: int | None
    why: str  # with the end of its log
    was_ready: bool
    again_s: float = inf  # until the supervisor restarts it; infinite: never


ChildEvent = ChildReady[Name] | ChildMessage[Name] | ChildSilent[Name] | ChildLost[Name]


class Supervisor(Generic[Name]):
    """Watches children by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.children: dict[Name, RankChild] = {}
        self.ready: set[Name] = set()  # those that came up
        self._clock = clock
        self._expected: dict[Name, float] = {}  # since when a heartbeat is expected
        # How to start, and how often to restart, the children of `keep`.
        self._restarted: dict[Name, tuple[Callable[[], RankChild], Backoff]] = {}
        self._due: dict[Name, float] = {}  # when to start those that are not running

    def keep(self, name: Name, start: Callable[[], RankChild], again: Backoff) -> None:
        """Start this child at the next poll, and restart it as often as `again` allows."""
        self._restarted[name], self._due[name] = (start, again), -inf

    def drop(self, name: Name) -> None:
        """Do not restart a child that was meant to end."""
        self._due.pop(name, None)

    def add(self, name: Name, child: RankChild) -> None:
        """Watch this child from now on."""
        self.children[name] = child

    def send(self, name: Name, **order: object) -> bool:
        """Send an order; False when the child has ended, which `events` reports."""
        child = self.children.get(name)
        return child is not None and child.send(**order)

    def expect(self, name: Name) -> None:
        """The child has work from now on: silence counts."""
        self._expected[name] = self._clock()

    def rest(self, name: Name) -> None:
        """The child has no work: it may be silent."""
        self._expected.pop(name, None)

    @property
    def busy(self) -> list[Name]:
        """Names of the children that have work."""
        return list(self._expected)

    def events(
        self, patience: Callable[[Heartbeat], float] | None = None
    ) -> Iterator[ChildEvent[Name]]:
        """Yield events since the last call; never waits.

        A child with work may be silent for `patience` seconds, which may depend on its newest
        heartbeat; None does not check for silence.
        """
        for name in [name for name, at in self._due.items() if at <= self._clock()]:
            del self._due[name]
            try:
                self.children[name] = self._restarted[name][0]()
            except (OSError, ClusterError) as error:
                yield self._lost(name, None, str(error), was_ready=False)
        for name, child in list(self.children.items()):
            alive = child.alive()  # before reading, so that its last messages are read
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
                if name in self._restarted:
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
        if name in self._restarted:
            again_s = self._restarted[name][1].wait_s(self._clock())
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
        """Newest heartbeats of these children, without those that ended."""
        return {n: self.children[n].sign() for n in names if n in self.children}

    def close(self, within_s: float) -> None:
        """Ask all children to end, and kill those that do not within this time."""
        self._due.clear()
        deadline = self._clock() + within_s
        for child in list(self.children.values()):
            child.send(end=True)
        for child in list(self.children.values()):
            child.stop(max(0.1, deadline - self._clock()))
        self.children.clear()
