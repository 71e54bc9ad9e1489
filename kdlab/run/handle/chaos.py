"""Chaos for a run from outside its process: a notebook, or `kdlab chaos`."""

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

_PATIENCE_S = 60  # a killed scheduler is back long before


@dataclass(slots=True)
class OtherTargets:
    """The processes and files of a run on this machine, as targets of chaos."""

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
        pids: dict[str, int] = {}
        for event in read_all(self.run.folder.events):
            match event:
                case MemberStarted():
                    pids = {}
                case GenerationStarted():
                    pids = event.pids()
                case WorkerStarted(worker=worker, pid=pid):
                    pids[f"worker-{worker}"] = pid
        return [Target(name, pid) for name, pid in pids.items()]

    def add_teacher(self) -> None:
        """Start a teacher, which may outlive the chaos but ends with the run's scheduler."""
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
        targets: list[Target] = []
        for process in self.run.folder.family():  # its watchdog is the first
            with suppress(psutil.Error):
                if words := process.cmdline():  # a zombie has none
                    targets.append(Target(program_of(words), process.pid))
        return targets

    def helpers(self) -> list[Target]:
        names = ("student_reader", "scheduler_process", "tracking.follow")
        return [t for t in self.processes() if t.name.endswith(names)]

    def files(self, kind: str) -> list[Path]:
        """Files to damage: the status, or the newest checkpoint if an earlier one is intact."""
        if kind == "damage_status":
            return [self.run.path / "status.json"]
        folders = sorted(self.run.path.glob("members/*/*/checkpoints/step_*"))
        intact = [folder for folder in folders if folder not in self.damaged]
        if len(intact) < 2 or intact[-1] != folders[-1]:
            return []
        self.damaged.add(intact[-1])
        return sorted(path for path in intact[-1].iterdir() if path.is_file())


def chaos(run: "Run", /, report: Emit = discard_event, **spec: Any) -> ChaosRunner:
    """Inject faults into a running run, from a notebook; the keys are those of `chaos:` in a spec.

        trouble = kdlab.chaos(run, kill_teacher=1, every_s=5, events=3)
        trouble.stop()

    Only processes of this machine are hit. Stop it before you leave: a suspended process
    would stay suspended. The run's events record each fault.

    Raises:
        BadInput: the run is not running.
        SpecError: a key or value is not allowed.
    """
    if run.state != "running":
        raise BadInput(f"Run {run.id} is {run.state}; chaos needs a running one.")
    wanted = construct(Chaos, from_dict(spec, "chaos"))
    targets, log = OtherTargets(run), EventLog(run.folder.events)

    def emit(event: Event) -> None:
        log.emit(event)
        report(event)

    return ChaosRunner(wanted, targets, emit, load_credentials(targets.address()))
