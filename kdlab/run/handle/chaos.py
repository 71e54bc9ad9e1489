"""Chaos for a run from outside: a notebook, or a process beside it."""

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kdlab.cluster.chaos import Chaos, ChaosRunner, Target
from kdlab.cluster.wires.security import remembered
from kdlab.errors import BadInput
from kdlab.events.ensemble import WorkerStarted
from kdlab.events.event import Emit, unheard
from kdlab.events.log import read_all, select
from kdlab.events.ranks import GenerationBegun
from kdlab.events.runs import MemberStarted
from kdlab.events.teachers import PoolReady
from kdlab.experiment.chaos_targets import by_pid

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run


@dataclass(slots=True)
class OtherTargets:
    """The processes of a run that goes on elsewhere on this machine."""

    run: "Run"
    joined: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def address(self) -> str:
        ready = next(select(self.run.folder.events, PoolReady), None)
        return "" if ready is None else ready.address

    def teachers(self) -> list[Target]:
        address = self.address()
        return list(by_pid(address, remembered(address)).values()) if address else []

    def ranks(self) -> list[Target]:
        if self.run.folder.resolved().get("workers") is not None:
            return []  # pids of other machines mean nothing here
        found: dict[str, int] = {}
        for event in read_all(self.run.folder.events):
            match event:
                case MemberStarted():
                    found = {}
                case GenerationBegun():
                    found = event.pids()
                case WorkerStarted(worker=worker, pid=pid):
                    found[f"worker-{worker}"] = pid
        return [Target(name, pid) for name, pid in found.items()]

    def add_teacher(self) -> None:
        address = self.address()
        if address:
            command = [sys.executable, "-m", "kdlab", "teacher", address, "--threads", "1"]
            quiet = subprocess.DEVNULL
            self.joined.append(subprocess.Popen(command, stdin=quiet, stderr=quiet))


def chaos(run: "Run", report: Emit = unheard, **spec: Any) -> ChaosRunner:
    """Trouble for a running run, from a notebook; the keys are those of `chaos:` in a spec.

        trouble = kdlab.chaos(run, kill_teacher=1, every_s=5, events=3)
        trouble.stop()

    Only processes of this machine are hit. Stop it before you leave: a stopped process
    would stay stopped.

    Raises:
        BadInput: the run is not running.
        SpecError: a key or value that is not allowed.
    """
    if run.state != "running":
        raise BadInput(f"Run {run.id} is {run.state}; chaos needs a running one.")
    targets = OtherTargets(run)
    return ChaosRunner(Chaos(**spec), targets, report, remembered(targets.address()))
