"""Chaos for a run from outside: a notebook, or a process beside it."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from kdlab.cluster.chaos import Chaos, ChaosRunner, Target
from kdlab.cluster.transport.security import load_credentials
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import BadInput
from kdlab.events.ensemble import WorkerStarted
from kdlab.events.event import Emit, Event, discard_event
from kdlab.events.log import EventLog, read_all, select
from kdlab.events.ranks import GenerationStarted
from kdlab.events.runs import MemberStarted
from kdlab.events.teachers import PoolReady
from kdlab.experiment.chaos_targets import by_pid
from kdlab.run.port_audit import program_of

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

_PATIENCE_S = 60  # a scheduler that was killed is back long before


@dataclass(slots=True)
class OtherTargets:
    """The processes of a run that goes on elsewhere on this machine."""

    run: "Run"
    joined: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    damaged: set[Path] = field(default_factory=set)  # checkpoints

    def address(self) -> str:
        ready = list(select(self.run.folder.events, PoolReady))
        return ready[-1].address if ready else ""  # a resumed run has another one

    def teachers(self) -> list[Target]:
        address = self.address()
        return list(by_pid(address, load_credentials(address)).values()) if address else []

    def ranks(self) -> list[Target]:
        if self.run.folder.resolved().get("workers") is not None:
            return []  # pids of other machines mean nothing here
        found: dict[str, int] = {}
        for event in read_all(self.run.folder.events):
            match event:
                case MemberStarted():
                    found = {}
                case GenerationStarted():
                    found = event.pids()
                case WorkerStarted(worker=worker, pid=pid):
                    found[f"worker-{worker}"] = pid
        return [Target(name, pid) for name, pid in found.items()]

    def add_teacher(self) -> None:
        """It may outlive the trouble, not the run: it ends without a scheduler."""
        address = self.address()
        if address and self.run.state == "running":
            command = [sys.executable, "-m", "kdlab", "teacher", address, "--threads", "1"]
            command += ["--patience", str(_PATIENCE_S)]
            quiet = subprocess.DEVNULL
            self.joined.append(
                subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
            )

    def main(self) -> list[Target]:
        return self.processes()[1:2]  # the first is its watchdog

    def processes(self) -> list[Target]:
        found: list[Target] = []
        for process in self.run.folder.family():  # its watchdog is the first
            with suppress(psutil.Error):
                if words := process.cmdline():  # a zombie has none
                    found.append(Target(program_of(words), process.pid))
        return found

    def helpers(self) -> list[Target]:
        names = ("student_reader", "scheduler_process", "tracking.follow")
        return [t for t in self.processes() if t.name.endswith(names)]

    def files(self, kind: str) -> list[Path]:
        """The status; of checkpoints the newest, if one before it is whole."""
        if kind == "damage_status":
            return [self.run.path / "status.json"]
        folders = sorted(self.run.path.glob("members/*/*/checkpoints/step_*"))
        whole = [folder for folder in folders if folder not in self.damaged]
        if len(whole) < 2 or whole[-1] != folders[-1]:
            return []
        self.damaged.add(whole[-1])
        return sorted(path for path in whole[-1].iterdir() if path.is_file())


def chaos(run: "Run", report: Emit = discard_event, **spec: Any) -> ChaosRunner:
    """Trouble for a running run, from a notebook; the keys are those of `chaos:` in a spec.

        trouble = kdlab.chaos(run, kill_teacher=1, every_s=5, events=3)
        trouble.stop()

    Only processes of this machine are hit. Stop it before you leave: a stopped process
    would stay stopped. What happens is in the run's events too.

    Raises:
        BadInput: the run is not running.
        SpecError: a key or value that is not allowed.
    """
    if run.state != "running":
        raise BadInput(f"Run {run.id} is {run.state}; chaos needs a running one.")
    asked = construct(Chaos, from_dict(spec, "chaos"))
    targets, log = OtherTargets(run), EventLog(run.folder.events)

    def tell(event: Event) -> None:
        log.emit(event)
        report(event)

    return ChaosRunner(asked, targets, tell, load_credentials(targets.address()))
