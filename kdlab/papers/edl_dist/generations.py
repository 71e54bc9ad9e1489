"""Fault tolerance of the students: EDL-Dist, section 3.4, second paragraph.

"when a Student server becomes unavailable or a new Student server is added to Student, the
training in all the Student servers stops. Afterward, each Student server loads the student model
from the checkpoint and continues the training process." One stretch of training with the same
ranks is a generation. The loss of a rank ends it: the others give up their step, all load the
newest checkpoint. A change of the number of ranks that was asked for ends it at a checkpoint of its
own, so that nothing is rolled back (beyond the paper).

    state       event                               next state   instruction
    ----------  ----------------------------------  -----------  ----------------
    standby     on_ready: enough are free           training     StartGeneration
    training    on_lost, on_broken                  regrouping
    training    on_wanted, and those are ready      saving       SaveAndStop
    saving      on_saved, on_lost or on_broken      regrouping
    regrouping  on_ready: all are free and enough   training     StartGeneration
    regrouping  on_tick: one does not let go        regrouping   Kill
    any         on_finished                         done         Give
    any         on_error, or no progress            failed       Give
"""

from dataclasses import dataclass, field
from typing import Literal

State = Literal["standby", "training", "saving", "regrouping", "done", "failed"]

# The paper names no limit to this. A fault that always returns must end the run.
_NO_STEP = 10  # generations in a row without one step: this is not chance
_NO_NEWS = 30  # generations that came no further than those before: a step always fails


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Let all ranks load the newest checkpoint and train."""

    generation: int
    # 3.4: the first is the master; the paper selects one for all training
    ranks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaveAndStop:
    """Let all ranks save after this step, then wait."""

    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a rank that does not leave a broken generation, or hangs."""

    rank: str


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start one more process, which reports when it is ready to be a rank."""


@dataclass(frozen=True, slots=True)
class Give:
    """End the group with the master's result, or with why it failed."""

    failed: str = ""  # for people; empty where it finished


Instruction = StartGeneration | SaveAndStop | Kill | StartProcess | Give


@dataclass(slots=True)
class Generations:
    wanted: int  # ranks
    least: int = 1  # ranks with which training still continues
    replace: bool = True  # a lost rank is replaced; else the group continues without it
    standby: int = 1  # processes kept ready beside the ranks
    let_go_s: float = 5.0  # seconds for a rank to leave a broken generation
    state: State = "standby"
    generation: int = 0
    ranks: tuple[str, ...] = ()  # of the generation under way, the master first
    free: list[str] = field(default_factory=list)  # ready, and no rank now
    starting: int = 0  # processes that were started and are not ready yet
    busy: set[str] = field(default_factory=set)  # still in the broken generation
    regroup_since: float = 0.0  # seconds, when the generation broke
    best_step: int = -1  # the furthest any generation came
    without_step: int = 0  # generations in a row that did no step
    without_news: int = 0  # generations in a row that did not pass `best_step`
    losses: int = 0  # ranks that were lost while they trained
    kill_ordered: set[str] = field(default_factory=set)  # survivors that did not let go

    def on_begin(self) -> list[Instruction]:
        return self._start_missing()

    def on_ready(self, rank: str, time: float) -> list[Instruction]:
        """Note that a process is ready, or has left a generation that ended."""
        if rank in self.busy:
            self.busy.discard(rank)
        else:
            self.starting = max(0, self.starting - 1)
        if rank not in self.free:
            self.free.append(rank)
        return self._advance(time)

    def on_lost(self, rank: str, time: float) -> list[Instruction]:
        """Note that a rank's process is gone (3.4: "becomes unavailable")."""
        known = rank in self.free or rank in self.ranks
        # The others may have noticed first, and given up their step already.
        in_generation = rank in self.ranks and (
            self.state in ("training", "saving") or rank in self.busy
        )
        self.free = [r for r in self.free if r != rank]
        self.busy.discard(rank)
        if not known:
            self.starting = max(0, self.starting - 1)
        if rank in self.ranks:
            self.ranks = tuple(r for r in self.ranks if r != rank)
        if self.state in ("done", "failed"):
            return []
        killed = rank in self.kill_ordered
        self.kill_ordered.discard(rank)
        if in_generation:
            self.losses += not killed
            # A rank that was killed because it did not leave is no lost machine.
            if not self.replace and not killed:
                self.wanted = max(self.least, self.wanted - 1)
            if self.state != "regrouping":
                self._break(time)  # 3.4: the training in all student servers stops
        return [*self._start_missing(), *self._advance(time)]

    def on_broken(self, rank: str, time: float) -> list[Instruction]:
        """Note that a rank gave up its step, since another one does not answer."""
        if self.state in ("training", "saving") and rank in self.ranks:
            self._break(time)
        return []

    def on_step(self, step: int) -> None:
        """Note that all ranks of this generation have done a step; the newest is `step`."""
        self.without_step = 0
        if step > self.best_step:
            self.best_step, self.without_news = step, 0

    def on_wanted(self, ranks: int) -> list[Instruction]:
        """Change the number of ranks, as somebody asked."""
        if ranks == self.wanted or ranks < self.least:
            return []
        self.wanted = ranks  # 3.4: "or a new Student server is added"
        return [*self._start_missing(), *self._save_if_ready()]

    def on_saved(self, time: float) -> list[Instruction]:
        """Note that all ranks have stopped at a checkpoint."""
        if self.state == "saving":
            self._break(time)
        return []

    def on_finished(self) -> list[Instruction]:
        self.state = "done"
        return [Give()]

    def on_error(self, why: str) -> list[Instruction]:
        """Fail: a rank raised an error, and another generation would fail the same way."""
        if self.state in ("done", "failed"):
            return []
        self.state = "failed"
        return [Give(failed=why)]

    def on_tick(self, time: float) -> list[Instruction]:
        """Kill ranks that do not leave a broken generation in time."""
        if self.state == "regrouping" and time - self.regroup_since > self.let_go_s:
            self.kill_ordered |= self.busy
            return [Kill(rank) for rank in sorted(self.busy)]
        return []

    def _break(self, time: float) -> None:
        self.busy = set(self.ranks)  # 3.4: the training in all of them stops
        self.state, self.regroup_since = "regrouping", time

    def _start_missing(self) -> list[Instruction]:
        """Start the processes that ranks and standbys lack and that are not starting yet."""
        have = len(set(self.free) | set(self.ranks)) + self.starting
        lacking = max(0, self.wanted + self.standby - have)
        self.starting += lacking
        return [StartProcess() for _ in range(lacking)]

    def _save_if_ready(self) -> list[Instruction]:
        """Save before a change of size, once the joining processes are ready."""
        there = len(self.ranks) + len(self.free)
        if self.state == "training" and there >= self.wanted != len(self.ranks):
            self.state = "saving"
            return [SaveAndStop(self.generation)]
        return []

    def _advance(self, time: float) -> list[Instruction]:
        if self.state == "training":
            return self._save_if_ready()
        if self.state not in ("standby", "regrouping") or self.busy:
            return []
        if len(self.free) < self.wanted:
            return []  # the missing one is being started
        if self.without_step >= _NO_STEP:
            return self.on_error(
                f"{self.without_step} generations of ranks in a row ended before one step"
            )
        if self.without_news >= _NO_NEWS:
            return self.on_error(
                f"{self.without_news} generations of ranks in a row came no further than "
                f"step {self.best_step}"
            )
        # Ranks of the generation before come first: they have the data already.
        before = [r for r in self.ranks if r in self.free]
        order = before + [r for r in self.free if r not in before]
        self.ranks = tuple(order[: self.wanted])
        self.free = order[self.wanted :]
        self.generation += 1
        self.without_step += 1
        self.without_news += 1
        self.state = "training"  # 3.4: each loads the checkpoint and continues
        return [StartGeneration(self.generation, self.ranks)]
