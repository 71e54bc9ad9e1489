"""Whom chaos can hit in a run: from inside, and from a notebook beside it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from kdlab.cluster.chaos import Chaos, Target, Unrest
from kdlab.cluster.wire import ask
from kdlab.errors import BadInput, SchedulerUnreachable
from kdlab.run.crew import Processes
from kdlab.train.events import select

if TYPE_CHECKING:
    from kdlab.cluster.group import StudentGroup
    from kdlab.cluster.local_pool import RunningLocalPool
    from kdlab.run.handle import Run


@dataclass(slots=True)
class OwnTargets:
    """The processes of the run that carries out the chaos itself."""

    pool: "RunningLocalPool | None" = None
    group: "StudentGroup | Processes | None" = None

    def teachers(self) -> list[Target]:
        """Those that serve or load; one that just ended is none."""
        if self.pool is None:
            return []
        known = _by_pid(self.pool.address, self.pool.tls)
        alive = [child for child in list(self.pool.teachers) if child.alive()]
        return [known[c.pid] for c in alive if c.pid in known]

    def ranks(self) -> list[Target]:
        group = self.group
        if group is None:
            return []
        if isinstance(group, Processes):
            return group.targets()
        children = dict(group.children)
        return [
            Target(name, children[name].pid)
            for name in group.machine.ranks
            if name in children
        ]

    def add_teacher(self) -> None:
        if self.pool is not None:
            self.pool.add_teacher()


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
        return list(_by_pid(address, None).values()) if address else []

    def ranks(self) -> list[Target]:
        spec = yaml.safe_load((self.run.path / "spec.yaml").read_text())
        if spec.get("workers") is not None:  # pids of other machines mean nothing here
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


def _by_pid(address: str, tls: dict[str, str] | None) -> dict[int, Target]:
    try:
        status: dict[str, Any] = ask(address, "kdlab_status", tls=tls)
    except SchedulerUnreachable:
        return {}  # the pool is gone; so are its teachers
    return {
        t["pid"]: Target(str(t.get("name", t["address"])), t["pid"], t["address"])
        for t in status["teachers"]
        # A pid means something on its own machine only; an emulated one is of them all.
        if "pid" in t and "://127." in t["address"] and t.get("device") != "emulated"
    }


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
