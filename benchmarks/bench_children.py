"""Child processes of a benchmark: each does one thing, says what came of it, and ends."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kdlab.codec import typed
from kdlab.errors import ClusterError
from kdlab.report.figures import Say
from kdlab.supervision.rank_child import LocalRank
from kdlab.supervision.supervisor import ChildLost, ChildSaid, Supervisor

T = TypeVar("T")

_TICK_S = 0.05
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class BenchJob:
    """A process of one core: its module, what that is told, and its log."""

    module: str
    config: object
    log: Path

    def start(self) -> LocalRank:
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        pulse = self.log.with_suffix(".pulse")
        return LocalRank(self.module, self.config, self.log, pulse, environment)


def results(
    jobs: Sequence[BenchJob],
    kind: type[T],
    *,
    at_once: int,
    patience_s: float,
    say: Say = lambda line: None,
) -> list[T]:
    """What each announced as `done`, in their order; what one announces as `say` is told.

    So many are there at once; `patience_s` is for all together.

    Raises:
        ClusterError: one ended before it was done, or they take too long.
    """
    supervisor: Supervisor[int] = Supervisor()
    found: dict[int, T] = {}
    waiting = list(enumerate(jobs))
    deadline = time.monotonic() + patience_s
    try:
        while len(found) < len(jobs):
            while waiting and len(supervisor.children) < at_once:
                number, job = waiting.pop(0)
                supervisor.add(number, job.start())
            for event in supervisor.events():
                match event:
                    case ChildSaid(number, {"done": done}):
                        found[number] = typed(kind, done)
                    case ChildSaid(_, {"say": line}):
                        say(str(line))
                    case ChildLost(number, _, why) if number not in found:
                        raise ClusterError(why)
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{len(jobs) - len(found)} of {len(jobs)} processes of this benchmark were "
                    f"not done within {patience_s:.0f} s."
                )
            time.sleep(_TICK_S)  # between looks at pipes
    finally:
        supervisor.close(_END_S)
    return [found[number] for number in range(len(jobs))]
