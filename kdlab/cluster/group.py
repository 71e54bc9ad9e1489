"""The ranks of one student as processes: started, watched, regrouped, ended.

It drives kdlab/papers/edl_dist/generations.py, and does not know what a rank does: a rank is a
module that announces that it is ready, gets `CarryOut`, and announces how that ended.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kdlab.cluster.chaos import Target
from kdlab.codec import to_builtins
from kdlab.errors import ClusterError, RunStopped
from kdlab.events.event import Emit
from kdlab.events.ranks import (
    GenerationStarted,
    GroupRecovered,
    RankGaveUp,
    RankHangs,
    RankKilled,
    RankLost,
)
from kdlab.papers.edl_dist.generations import (
    Generations,
    Give,
    Instruction,
    Kill,
    SaveAndStop,
    StartGeneration,
    StartProcess,
)
from kdlab.supervision.children import RankChild
from kdlab.supervision.heartbeat import Heartbeat
from kdlab.supervision.rank_messages import (
    CarryOut,
    GenerationOrder,
    GroupBroken,
    MachineFailed,
    RankAnswer,
    RankDone,
    RankFailed,
    RankSaved,
    RankStopped,
    SaveGeneration,
    StopTraining,
)
from kdlab.supervision.supervisor import ChildLost, ChildMessage, ChildReady, Supervisor

_TICK_S = 0.02
_START_S = 60.0  # of a generation, until every rank has done a step
_END_S = 5.0  # for ranks to end after the order
_STOP_S = 6.0  # until one rank ends its step: then all do, else none
_FAILED_STARTS = 5  # of standby processes, in a row


class StudentGroup:
    def __init__(
        self,
        machine: Generations,
        *,
        start: Callable[[str, Path], RankChild],
        order: Callable[[StartGeneration], GenerationOrder],
        folder: Path,
        hang_s: float,
        report: Emit,
        stop: Callable[[], bool],
        wanted: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Prepare a group; `run` starts it.

        Args:
            machine: decides which processes are ranks.
            start: starts a process of this name, with its heartbeat file at the path.
            order: order to the ranks of a generation, without their own numbers.
            folder: for heartbeats and rendezvous files.
            hang_s: silence after which ranks count as hung.
            report: called with every event.
            stop: returns whether the user asked to stop.
            wanted: returns a requested number of ranks, or None.
        """
        self.machine, self.start, self.order = machine, start, order
        self.folder, self.hang_s, self.report = folder, hang_s, report
        self.stop, self.wanted = stop, wanted
        self.supervisor: Supervisor[str] = Supervisor()
        self.started = 0
        self.result: dict[str, Any] | None = None  # of the master
        self.failed = ""
        self.error_code = 1
        self.begun_step = 0  # at which the current generation started
        self.lost_at: float | None = None  # a loss after which no rank has trained yet
        self.begun_at = 0.0
        self._now = time.monotonic()  # of the last poll
        self.told_to_stop: float | None = None
        self.stop_heard = False  # a rank has ended its step: the master saves
        self.failed_starts = 0  # in a row
        self.killed: set[str] = set()  # for silence; their end is noticed a moment later
        self.last_words: dict[str, str] = {}  # of ranks whose machine failed
        self.failovers: list[float] = []  # seconds from a loss to the next step

    def targets(self) -> list[Target]:
        """Ranks of the current generation, as targets of chaos."""
        children = dict(self.supervisor.children)
        return [
            Target(name, children[name].pid)
            for name in self.machine.ranks
            if name in children
        ]

    def run(self) -> dict[str, Any]:
        """Run until the master has finished, and return its result.

        Raises:
            ClusterError: the group cannot continue.
            RunStopped: the user asked to stop.
        """
        try:
            self.begin()
            while self.machine.state not in ("done", "failed"):
                self.poll(time.monotonic())
                time.sleep(_TICK_S)  # between polls of pipes and processes
        finally:
            self.close()
        if self.failed:
            error = ClusterError(self.failed)
            error.exit_code = self.error_code
            raise error
        assert self.result is not None
        return self.result

    def begin(self) -> None:
        """Start the first processes."""
        self._do(self.machine.on_begin())

    # Events

    def poll(self, now: float) -> None:
        """Handle all events since the last poll; `now` is the monotonic clock's time.

        Raises:
            RunStopped: the user asked to stop, and all is saved.
        """
        self._now = now
        for event in self.supervisor.events():
            match event:
                case ChildReady(name):
                    self._do(self.machine.on_ready(name, now))
                case ChildMessage(name, message):
                    self._on_message(name, RankAnswer.from_builtins(message), now)
                case ChildLost():
                    self._on_death(event, now)
        self._check_heartbeats(now)
        ranks = self.wanted()
        if ranks is not None:
            self._do(self.machine.on_wanted(ranks))
        self._do(self.machine.on_tick(now))
        if self.stop():
            self._stop_gracefully(now)

    def _on_message(self, name: str, message: RankAnswer, now: float) -> None:
        machine = self.machine
        match message:
            case MachineFailed(why):
                self.last_words[name] = why
            case GroupBroken(why):
                self.report(RankGaveUp(rank=name, why=why))
                self._do([*machine.on_broken(name, now), *machine.on_ready(name, now)])
            case RankSaved(leaving):
                self._do(machine.on_saved(now))
                if not leaving:
                    self._do(machine.on_ready(name, now))
            case RankStopped(why) if name == machine.ranks[0]:
                raise RunStopped(why)  # it has saved; the others stop earlier
            case RankStopped():
                self.stop_heard = True
            case RankFailed(error, exit_code):
                self.error_code = exit_code
                self._do(machine.on_error(error))
            case RankDone(result) if result is not None:  # only the master has one
                self.result = result
                self._do(machine.on_finished())

    def _on_death(self, lost: ChildLost[str], now: float) -> None:
        if self.machine.state in ("done", "failed"):
            return
        name, code = lost.name, lost.exit_code
        was_rank = name in self.machine.ranks
        if was_rank:  # in any state: the others may have noticed first
            self.lost_at = self.lost_at or now
        why = self.last_words.pop(name, f"exit code {code}")
        self.report(RankLost(rank=name, exit_code=code, was_rank=was_rank, why=why))
        if lost.was_ready or was_rank:
            self.failed_starts = 0
        elif code not in (None, 0) and code > 0:
            self.failed_starts += 1
            # Before training: it could not even come up, so another one would not either.
            # Later the others keep training, while a standby may still come up.
            if not self.machine.generation or self.failed_starts >= _FAILED_STARTS:
                self._do(self.machine.on_error(lost.why))
                return
        self._do(self.machine.on_lost(name, now))

    def _check_heartbeats(self, now: float) -> None:
        machine = self.machine
        if machine.state not in ("training", "saving"):
            return
        signs = self.supervisor.signs(machine.ranks)
        current = {n: s for n, s in signs.items() if s.generation == machine.generation}
        all_step = self._all_step(current)
        if all_step:
            machine.on_step(max(sign.step for sign in current.values()))
        newest = max((s.time for s in current.values()), default=self.begun_at)
        if self.lost_at is not None and all_step:
            self.failovers.append(now - self.lost_at)
            self.report(
                GroupRecovered(seconds=self.failovers[-1], generation=machine.generation)
            )
            self.lost_at = None
        # Loading data and waiting for the first soft labels may take longer than a step.
        patience = self.hang_s if all_step else max(self.hang_s, _START_S)
        dying = self.killed & self.supervisor.children.keys()  # noticed at the next poll
        if not dying and now - max(newest, self.begun_at) > patience:
            for name in self._hung(current):
                self.killed.add(name)
                self.report(RankHangs(rank=name, silent_s=now - newest))
                self.supervisor.children[name].kill()

    def _all_step(self, current: dict[str, Heartbeat]) -> bool:
        """True where every rank has done a step of the current generation."""
        ranks = self.machine.ranks
        return len(current) == len(ranks) and all(
            sign.step > self.begun_step for sign in current.values()
        )

    def _hung(self, current: dict[str, Heartbeat]) -> list[str]:
        """Find the rank that the others wait for, as far as signs show; all are silent."""
        children = self.supervisor.children
        ranks = [name for name in self.machine.ranks if name in children]
        stopped = [n for n in ranks if children[n].is_stopped()]
        if stopped:
            return stopped
        absent = [n for n in ranks if n not in current]
        if absent:
            return absent
        least = min((current[n].step for n in ranks), default=0)
        return [n for n in ranks if current[n].step == least]

    def _stop_gracefully(self, now: float) -> None:
        if self.told_to_stop is None:
            self.told_to_stop = now
            for child in self.supervisor.children.values():
                child.send(**to_builtins(StopTraining()))
        ranks = self.machine.ranks if self.machine.state in ("training", "saving") else ()
        late = now - self.told_to_stop > (self.hang_s if self.stop_heard else _STOP_S)
        if not ranks or late:
            for child in self.supervisor.children.values() if late else ():
                child.kill()  # never wait twice
            raise RunStopped("stopped by the user; the last checkpoint is kept")

    # Instructions

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartProcess():
                    self._start_process()
                case StartGeneration():
                    self._start_generation(instruction)
                case SaveAndStop():
                    for name in self.machine.ranks:
                        self.supervisor.send(name, **to_builtins(SaveGeneration()))
                case Kill(rank) if rank in self.killed:
                    continue  # its end is noticed a moment later
                case Kill(rank):
                    self.killed.add(rank)
                    self.report(RankKilled(rank=rank, why="it does not let go"))
                    if rank in self.supervisor.children:
                        self.supervisor.children[rank].kill()
                case Give(failed):
                    self.failed = failed

    def _start_process(self) -> None:
        name = f"rank-process-{self.started}"
        self.started += 1
        self.supervisor.add(name, self.start(name, self.folder / "pulse" / name))

    def _start_generation(self, generation: StartGeneration) -> None:
        self.begun_at = self._now
        shared, children = self.order(generation), self.supervisor.children
        self.report(
            GenerationStarted(
                number=generation.generation,
                ranks={n: children[n].pid for n in generation.ranks},
            )
        )
        self.begun_step = shared.from_step
        places = [children[name].machine for name in generation.ranks]
        for number, name in enumerate(generation.ranks):
            order = replace(
                shared,
                rank=number,
                names=tuple(generation.ranks),
                local_rank=places[:number].count(places[number]),
                local_world=max(map(places.count, places)),
            )
            self.supervisor.send(name, **to_builtins(CarryOut(to_builtins(order))))

    def close(self) -> None:
        self.supervisor.close(_END_S)
