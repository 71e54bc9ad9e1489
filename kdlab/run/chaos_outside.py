"""Chaos for a run from outside: a notebook, or a process beside it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kdlab.cluster.chaos import Chaos, Target, Unrest
from kdlab.errors import BadInput
from kdlab.experiment.chaos_targets import by_pid
from kdlab.train.events import select

if TYPE_CHECKING:
    from kdlab.run.handle import Run


@dataclass(slots=True)
class OtherTargets:
    """The processes of a run that goes on elsewhere on this machine."""

    run: "Run"
    joined: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def address(self) -> str:
        for event in select(self.run.folder.events, "pool_ready"):
            return str(event["address"])
        return ""

    def teachers(self) -> list[Target]:
        address = self.address()
        return list(by_pid(address, None).values()) if address else []

    def ranks(self) -> list[Target]:
        if (
            self.run.folder.resolved().get("workers") is not None
        ):  # pids of other machines mean nothing here
            return []
        found: dict[str, int] = {}
        kinds = ("member_started", "generation", "worker_started")
        for event in select(self.run.folder.events, *kinds):
            match event["event"]:
                case "member_started":
                    found = {}
                case "generation":
                    found = event["ranks"]
                case "worker_started":
                    found[f"worker-{event['worker']}"] = event["pid"]
        return [Target(name, pid) for name, pid in found.items()]

    def add_teacher(self) -> None:
        address = self.address()
        if address:
            command = [sys.executable, "-m", "kdlab", "teacher", address, "--threads", "1"]
            self.joined.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )


def chaos(
    run: "Run", report: Callable[..., None] = lambda event, /, **data: None, **spec: Any
) -> Unrest:
    """Trouble for a running run, from a notebook; the keys are those of `chaos:` in a spec.

        unrest = kdlab.chaos(run, kill_teacher=1, every_s=5, events=3)
        unrest.stop()

    Only processes of this machine are hit. Stop it before you leave: a stopped process
    would stay stopped.

    Raises:
        BadInput: the run is not running.
        SpecError: a key or value that is not allowed.
    """
    if run.state != "running":
        raise BadInput(f"Run {run.id} is {run.state}; chaos needs a running one.")
    return Unrest(Chaos(**spec), OtherTargets(run), report)
