"""The student's side of fault tolerance: EDL-Dist section 3.4, second half.

"When a Student server is lost or a new one is added, the training in all Student servers
stops, each loads the checkpoint, and training continues." One such stretch with the same
ranks is a generation. A rank that is lost takes its generation with it: the others give
up their step, all load the newest checkpoint. A rank that comes or goes gracefully ends
the generation at a checkpoint of its own, so nothing is rolled back.

    STANDBY --enough are ready--> TRAINING --a rank is lost--> REGROUPING --all free--> ...
                                          --somebody asked--> SAVING --saved--> REGROUPING
"""

from dataclasses import dataclass, field
from typing import Literal

State = Literal["standby", "training", "saving", "regrouping", "done", "failed"]

_NO_STEP = 10  # generations in a row that did not do one step: it is no bad luck
_NO_NEWS = 30  # that came no further than those before: something always fails there


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """All load the newest checkpoint and train; the first is the master."""

    generation: int
    ranks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaveAndStop:
    """The master tells all: save after this step, then wait."""

    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A rank that does not let go of a broken generation, or hangs."""

    rank: str


@dataclass(frozen=True, slots=True)
class StartProcess:
    """One more process, which says when it is ready to be a rank."""


@dataclass(frozen=True, slots=True)
class Give:
    """The group ends: `result` of the master, or why not."""

    failed: str = ""


Instruction = StartGeneration | SaveAndStop | Kill | StartProcess | Give


@dataclass(slots=True)
class Generations:
    wanted: int  # ranks
    least: int = 1  # go on with so few, when nobody is to be waited for
    replace: bool = True  # a lost rank is replaced; else the group goes on without it
    standby: int = 1  # processes kept ready beside the ranks
    let_go_s: float = 5.0  # for a rank of a broken generation
    state: State = "standby"
    generation: int = 0
    ranks: tuple[str, ...] = ()  # of the generation under way, the master first
    free: list[str] = field(default_factory=list)  # ready, and no rank now
    starting: int = 0  # processes that were started and are not ready yet
    busy: set[str] = field(default_factory=set)  # still in the broken generation
    regroup_since: float = 0.0
    best_step: int = -1  # the furthest any generation came
    without_step: int = 0  # generations in a row
    without_news: int = 0
    losses: int = 0
    told_to_kill: set[str] = field(default_factory=set)  # survivors that did not let go

    def on_begin(self) -> list[Instruction]:
        return self._fill()

    def on_ready(self, rank: str, time: float) -> list[Instruction]:
        """A process is ready, or has let go of a generation that ended."""
        if rank in self.busy:
            self.busy.discard(rank)
        else:
            self.starting = max(0, self.starting - 1)
        if rank not in self.free:
            self.free.append(rank)
        return self._go_on(time)

    def on_lost(self, rank: str, time: float) -> list[Instruction]:
        """Its process is gone."""
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
        killed = rank in self.told_to_kill
        self.told_to_kill.discard(rank)
        if in_generation:
            self.losses += not killed
            # Who was killed for not letting go is no machine that was lost.
            if not self.replace and not killed:
                self.wanted = max(self.least, self.wanted - 1)
            if self.state != "regrouping":
                self._break(time)  # 3.4: the training in all student servers stops
        return [*self._fill(), *self._go_on(time)]

    def on_broken(self, rank: str, time: float) -> list[Instruction]:
        """A rank gave up its step, since another did not answer any more."""
        if self.state in ("training", "saving") and rank in self.ranks:
            self._break(time)
        return []

    def on_step(self, step: int) -> None:
        """All ranks of this generation have done a step; the newest is `step`."""
        self.without_step = 0
        if step > self.best_step:
            self.best_step, self.without_news = step, 0

    def on_wanted(self, ranks: int) -> list[Instruction]:
        """Somebody asked for another number of ranks."""
        if ranks == self.wanted or ranks < self.least:
            return []
        self.wanted = ranks
        return [*self._fill(), *self._save_if_ready()]

    def on_saved(self, time: float) -> list[Instruction]:
        """All ranks have stopped at a checkpoint and let go."""
        if self.state == "saving":
            self._break(time)
        return []

    def on_finished(self) -> list[Instruction]:
        self.state = "done"
        return [Give()]

    def on_error(self, why: str) -> list[Instruction]:
        """A rank failed by itself; another generation would fail the same way."""
        if self.state in ("done", "failed"):
            return []
        self.state = "failed"
        return [Give(failed=why)]

    def on_tick(self, time: float) -> list[Instruction]:
        """What does not let go in time is killed."""
        if self.state == "regrouping" and time - self.regroup_since > self.let_go_s:
            self.told_to_kill |= self.busy
            return [Kill(rank) for rank in sorted(self.busy)]
        return []

    def _break(self, time: float) -> None:
        self.busy = set(self.ranks)
        self.state, self.regroup_since = "regrouping", time

    def _fill(self) -> list[Instruction]:
        """Processes for the ranks and the standby places that nobody is starting for."""
        have = len(set(self.free) | set(self.ranks)) + self.starting
        lacking = max(0, self.wanted + self.standby - have)
        self.starting += lacking
        return [StartProcess() for _ in range(lacking)]

    def _save_if_ready(self) -> list[Instruction]:
        """A change of size waits until those who are to join are ready."""
        there = len(self.ranks) + len(self.free)
        if self.state == "training" and there >= self.wanted != len(self.ranks):
            self.state = "saving"
            return [SaveAndStop(self.generation)]
        return []

    def _go_on(self, time: float) -> list[Instruction]:
        if self.state == "training":
            return self._save_if_ready()
        if self.state not in ("standby", "regrouping") or self.busy:
            return []
        if len(self.free) < self.wanted:
            return []  # it is being started
        if self.without_step >= _NO_STEP:
            return self.on_error(
                f"{self.without_step} generations of ranks in a row ended before one step"
            )
        if self.without_news >= _NO_NEWS:
            return self.on_error(
                f"{self.without_news} generations of ranks in a row came no further than "
                f"step {self.best_step}"
            )
        # Those of the generation before come first: they know the data already.
        before = [r for r in self.ranks if r in self.free]
        order = before + [r for r in self.free if r not in before]
        self.ranks = tuple(order[: self.wanted])
        self.free = order[self.wanted :]
        self.generation += 1
        self.without_step += 1
        self.without_news += 1
        self.state = "training"  # 3.4: each loads the checkpoint and continues
        return [StartGeneration(self.generation, self.ranks)]
