"""Chaos on a seeded timetable: the faults that elastic machines cause in a run.

It kills, stops, slows, cuts off and withdraws real teachers and ranks, and adds teachers:
by signals to processes, and for a partition or a slow link by a teacher that sends nothing,
or sends late. From outside a run it also causes what would end the timetable itself: the run's
process and helpers killed, all of it stopped as by a closed lid, its files damaged, and system
limits that make a disk full, descriptors short and shared memory too small for it alone.
The same seed gives the same timetable; its targets depend on who is there at that moment.
"""

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import psutil

from kdlab.cluster.transport.security import Files
from kdlab.cluster.transport.wire import ask
from kdlab.config import Fault, Range
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, Spec, hints_of
from kdlab.errors import SchedulerUnreachable
from kdlab.events.event import Emit
from kdlab.events.teachers import ChaosCaused

FILE_SIZE = resource.RLIMIT_FSIZE  # bytes of a file, in /dev/shm too: EFBIG beyond
DESCRIPTORS = resource.RLIMIT_NOFILE  # open at once: EMFILE beyond
_PULSE_S = 0.02  # period of a slowed process, which runs for a tenth of it
_DELAY = 0.1  # of `lasts_s`: delay of each answer of a delayed teacher
_ROOM = 3000  # bytes of a file on a "full" disk: enough for a status
_WEIGHT = Annotated[float, NOT_NEGATIVE]


@dataclass(frozen=True, kw_only=True)
class Chaos(Spec):
    """A timetable of faults; each kind happens in proportion to its weight.

    events: number of faults, one after the other.
    every_s: mean time between two, drawn from an exponential distribution.
    lasts_s: of a stop (SIGSTOP), a slow phase (a tenth of the speed), a partition, a delay
        (answers come a tenth of it later), a full disk or too few descriptors.
    back_after_s: a killed or withdrawn teacher is replaced after this time; null: never.
    kill_run, stop_run: the run's process; all its processes. These and the kinds after them
        come from outside: `kdlab chaos`, `kdlab.chaos`.
    kill_helper: its reader, its tracker or the scheduler of its pool.
    fill_disk, exhaust_descriptors: limits of the system make it so for the run's processes.
    fill_shared_memory: a full disk, and a reader that needs a new ring.
    damage_checkpoint, damage_status: a byte of the newest checkpoint, or of the status file.
    """

    seed: int = 0
    events: Annotated[int, Range(ge=1)] = 20
    every_s: Annotated[float, POSITIVE] = 2.0
    lasts_s: Annotated[float, POSITIVE] = 3.0
    back_after_s: Annotated[float, NOT_NEGATIVE] | None = 1.0
    kill_teacher: _WEIGHT = 0.0
    stop_teacher: _WEIGHT = 0.0
    slow_teacher: _WEIGHT = 0.0
    partition_teacher: _WEIGHT = 0.0
    delay_teacher: _WEIGHT = 0.0
    leave_teacher: _WEIGHT = 0.0
    join_teacher: _WEIGHT = 0.0
    kill_rank: _WEIGHT = 0.0
    stop_rank: _WEIGHT = 0.0
    leave_rank: _WEIGHT = 0.0
    kill_run: _WEIGHT = 0.0
    stop_run: _WEIGHT = 0.0
    kill_helper: _WEIGHT = 0.0
    fill_disk: _WEIGHT = 0.0
    fill_shared_memory: _WEIGHT = 0.0
    exhaust_descriptors: _WEIGHT = 0.0
    damage_checkpoint: _WEIGHT = 0.0
    damage_status: _WEIGHT = 0.0

    def cross_faults(self) -> Iterator[Fault]:
        if not any(self.weights().values()):
            yield Fault(
                "kill_teacher",
                "and all other weights are 0: nothing would happen; give some, such as "
                "kill_teacher: 1",
            )

    def weights(self) -> dict[str, float]:
        return {kind: float(getattr(self, kind)) for kind in KINDS}


KINDS = tuple(name for name, hint in hints_of(Chaos).items() if hint == _WEIGHT)
# These would end the run that carries them out, or its timetable: `kdlab chaos` and `kdlab.chaos`
# alone.
FROM_OUTSIDE = KINDS[KINDS.index("kill_run") :]


@dataclass(frozen=True, slots=True)
class ChaosEntry:
    at_s: float  # since the start
    kind: str
    draw: float  # in [0, 1): chooses the target among those there


def timetable(spec: Chaos) -> list[ChaosEntry]:
    """Draw the timetable of a spec, equal for equal specs."""
    chance, at = random.Random(spec.seed), 0.0
    weights = spec.weights()
    entries = []
    for _ in range(spec.events):
        at += chance.expovariate(1 / spec.every_s)
        (kind,) = chance.choices(list(weights), list(weights.values()))
        entries.append(ChaosEntry(at, kind, chance.random()))
    return entries


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    pid: int
    address: str = ""  # of a teacher


class Targets(Protocol):
    """Possible targets now: processes of this machine."""

    def teachers(self) -> list[Target]: ...

    def ranks(self) -> list[Target]: ...

    def add_teacher(self) -> None: ...

    def main(self) -> list[Target]:
        """The run's process: one, or none while there is none."""
        ...

    def processes(self) -> list[Target]:
        """All processes of the run, including its teachers."""
        ...

    def helpers(self) -> list[Target]:
        """Processes that neither train nor teach: readers, tracker, scheduler."""
        ...

    def files(self, kind: str) -> list[Path]:
        """Files that a fault of a `damage_` kind may hit: the run can do without them."""
        ...


class Limits:
    """Lowered soft limits of single processes, and their former values.

    A full disk or used-up descriptors would affect everybody on the machine; limits cause the same
    errors of the same calls in the run alone.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # by kind, of processes that nobody limits

    def lower(self, pid: int, what: int, to: int | None) -> psutil.Process | None:
        """Lower a limit of a process, to its present use where `to` is None; None if it is gone."""
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            soft, hard = process.rlimit(what)
            if what not in self._before:
                self._before[what] = soft
            least = process.num_fds() if to is None else to
            process.rlimit(what, (least, hard))
            return process
        return None

    def lift(self, process: psutil.Process, what: int) -> None:
        """Restore a limit of a process and of its children."""
        with contextlib.suppress(psutil.Error):
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError):
                    _, hard = member.rlimit(what)
                    member.rlimit(what, (self._before[what], hard))


class ChaosRunner:
    """Carries out a timetable in a thread.

    `stop()` ends it, continues stopped processes, and replaces the teachers that it took.

    Args:
        spec: the timetable.
        targets: finds the targets.
        report: called with every event.
        tls: certificates of the pool.
    """

    def __init__(
        self, spec: Chaos, targets: Targets, report: Emit, tls: Files | None = None
    ) -> None:
        self.spec, self.targets, self.report, self.tls = spec, targets, report, tls
        self.done = 0  # events that hit a target
        self._ending = threading.Event()
        self._stopped: set[int] = set()  # pids to continue in the end
        self._limits = Limits()
        self._later: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the last event of the timetable."""
        self._thread.join()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        for thread in self._later:
            thread.join()
        for pid in list(self._stopped):
            _send(pid, signal.SIGCONT)

    def _run(self) -> None:
        begin = time.monotonic()
        for entry in timetable(self.spec):
            if self._ending.wait(max(0.0, begin + entry.at_s - time.monotonic())):
                return
            self._execute(entry)

    def _execute(self, entry: ChaosEntry) -> None:
        if entry.kind == "join_teacher":
            self.targets.add_teacher()
            self._report_hit(entry, "a new one")
            return
        what, _, who = entry.kind.partition("_")
        if what == "damage":
            self._damage(entry)
            return
        by_who: Mapping[str, Callable[[], list[Target]]] = {
            "teacher": self.targets.teachers,
            "rank": self.targets.ranks,
            "helper": self.targets.helpers,
            "descriptors": self.targets.processes,
        }
        there = by_who.get(who, self.targets.main)()
        if not there:
            return  # no target: the timetable continues
        target = there[int(entry.draw * len(there))]
        acts: Mapping[str, Callable[[Target], None]] = {
            "kill": lambda t: self._end(t, signal.SIGKILL, who),
            "leave": lambda t: self._end(t, signal.SIGTERM, who),
            "stop": self._stop_all if who == "run" else self._stop_for_a_while,
            "slow": lambda t: self._in_background(self._slow, t),
            "partition": lambda t: self._order(t, "partition"),
            "delay": lambda t: self._order(t, "delay", delay_s=_DELAY * self.spec.lasts_s),
            "fill": lambda t: self._fill(t, rings=who == "shared_memory"),
            "exhaust": lambda t: self._limit([t], DESCRIPTORS, None),
        }
        self._report_hit(entry, target.name)  # before its effects
        acts[what](target)

    def _report_hit(self, entry: ChaosEntry, name: str) -> None:
        self.done += 1
        self.report(ChaosCaused(kind=entry.kind, target=name, number=self.done))

    def _end(self, target: Target, number: signal.Signals, who: str) -> None:
        _send(target.pid, number)
        if who == "teacher" and self.spec.back_after_s is not None:
            self._in_background(self._replace)

    def _replace(self) -> None:
        self._ending.wait(self.spec.back_after_s)
        self.targets.add_teacher()  # also at the end, at once: what was taken comes back

    def _stop_for_a_while(self, target: Target) -> None:
        self._stopped.add(target.pid)
        _send(target.pid, signal.SIGSTOP)
        self._in_background(self._continue, target)

    def _continue(self, target: Target) -> None:
        self._ending.wait(self.spec.lasts_s)
        _send(target.pid, signal.SIGCONT)
        self._stopped.discard(target.pid)

    def _slow(self, target: Target) -> None:
        """Slow a process to a tenth: stop it for nine tenths of each short period."""
        self._stopped.add(target.pid)
        end = time.monotonic() + self.spec.lasts_s
        while time.monotonic() < end and not self._ending.is_set():
            if not _send(target.pid, signal.SIGSTOP):
                break
            self._ending.wait(0.9 * _PULSE_S)
            _send(target.pid, signal.SIGCONT)
            self._ending.wait(0.1 * _PULSE_S)
        self._stopped.discard(target.pid)

    def _order(self, target: Target, order: str, **how: float) -> None:
        """Order a teacher of a pool with `chaos: true` to cause the fault itself."""
        with contextlib.suppress(SchedulerUnreachable):  # it is gone already
            ask(
                target.address,
                f"kdlab_{order}",
                wait_s=2.0,
                tls=self.tls,
                seconds=self.spec.lasts_s,
                **how,
            )

    def _stop_all(self, target: Target) -> None:
        """Stop all processes of the run, as a closed lid does."""
        for process in self.targets.processes():
            self._stop_for_a_while(process)

    def _fill(self, target: Target, *, rings: bool) -> None:
        """Let no file of the run grow; with `rings` its readers need new rings, too."""
        self._limit(self.targets.processes(), FILE_SIZE, _ROOM)
        for helper in self.targets.helpers() if rings else ():
            if "reader" in helper.name:
                _send(helper.pid, signal.SIGKILL)

    def _limit(self, targets: Sequence[Target], what: int, to: int | None) -> None:
        hit = [p for t in targets if (p := self._limits.lower(t.pid, what, to))]
        self._in_background(self._unlimit, hit, what)

    def _unlimit(self, processes: list[psutil.Process], what: int) -> None:
        self._ending.wait(self.spec.lasts_s)
        for process in processes:
            self._limits.lift(process, what)

    def _damage(self, entry: ChaosEntry) -> None:
        """Change one byte of a file."""
        files = self.targets.files(entry.kind)
        if not files:
            return
        path = files[int(entry.draw * len(files))]
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:  # replaced
            size = path.stat().st_size
            place = int(entry.draw * 1e6) % max(1, size)
            file.seek(place)
            old = file.read(1) or b"\0"
            file.seek(place)
            file.write(bytes([old[0] ^ 0x55]))
            self._report_hit(entry, f"byte {place} of {path.name}")

    def _in_background(self, work: Callable[..., None], *about: object) -> None:
        thread = threading.Thread(target=work, args=about, daemon=True)
        self._later.append(thread)
        thread.start()


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False  # it ended by itself meanwhile
    return True
