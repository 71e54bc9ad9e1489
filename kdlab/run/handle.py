"""A run from outside. It lives in a process of its own and outlives this one."""

import contextlib
import html
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from kdlab.config.home import locked, runs_folder, write_json
from kdlab.config.registry import component_names
from kdlab.errors import BadInput, NotFoundError, RunFailed, RunStopped
from kdlab.run import folder as folders
from kdlab.run.folder import ENDED, RunFolder

if TYPE_CHECKING:
    from kdlab.run.control import Knob
    from kdlab.run.experiment import Experiment

_LOOK_S = 0.1
_Watcher = Callable[[dict[str, Any]], None]


def start(experiment: "Experiment") -> "Run":
    """A run folder, and the process that fills it. The experiment is checked already."""
    run, components = _made(experiment, "starting")
    _spawn(run, components)
    return Run(run)


def prepare_for_torchrun(experiment: "Experiment") -> "Run":
    """A run folder whose ranks torchrun is going to start (kdlab/run/torchrun.py).

    Raises:
        BadInput: the spec has no ranks, or needs components from a notebook cell.
    """
    aggregation = experiment.resolved["aggregation"]["type"]
    if aggregation != "train/aggregation/all_reduce":
        raise BadInput(
            f"torchrun starts the ranks of one student, and aggregation is {aggregation}, "
            "which has none. Set aggregation.type=train/aggregation/all_reduce."
        )
    from kdlab.cluster.notebook_components import pack

    components = pack(component_names(experiment.resolved))
    if components:
        raise BadInput(
            f"The spec uses {', '.join(components)} from a notebook cell, which processes of "
            "torchrun do not know. Put them into a package with an entry point."
        )
    run, _ = _made(experiment, "prepared")
    return Run(run)


def _made(experiment: "Experiment", state: str) -> tuple[RunFolder, dict[str, Any]]:
    from kdlab.cluster.notebook_components import pack

    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = runs_folder() / f"{stamp}-{secrets.token_hex(2)}"
    path.mkdir(parents=True)
    run = RunFolder(path)
    (path / "spec.yaml").write_text(experiment.yaml(), encoding="utf-8")
    components = pack(component_names(experiment.resolved))
    write_json(path / "components.json", components)
    run.write_status(state=state, created=time.time())
    write_json(
        path / "experiment.json",
        {
            "experiment": experiment.name,
            "spec_hash": experiment.hash,
            "cwd": os.getcwd(),
        },
    )
    return run, components


def resume(run_id: str, trust_components: bool = False) -> "Run":
    """Go on from the newest checkpoint of a run that was stopped, failed or lost.

    Raises:
        BadInput: it runs already, or is finished.
        NotFoundError: no such run.
    """
    run = folders.find(run_id)
    state = run.status()["state"]
    if state not in ("stopped", "failed", "lost"):
        raise BadInput(f"Run {run.run_id} is {state}; there is nothing to resume.")
    components = json.loads((run.path / "components.json").read_text())
    if components and not trust_components:
        raise BadInput(
            f"Run {run.run_id} uses components from a notebook cell "
            f"({', '.join(components)}). Their source in {run.path}/components.json is only "
            f"run when you say so: kdlab resume {run.run_id} --trust-components"
        )
    # A killed process counts as gone a moment before its last thread lets go of the lock.
    patience = time.monotonic() + 5.0

    def busy() -> None:
        if time.monotonic() > patience:
            raise BadInput(
                f"Run {run.run_id} is going already; watch it with: kdlab attach {run.run_id}"
            )

    with locked(run.path / "lock", busy):
        run.write_status(state="starting", created=time.time(), pid=None, error=None)
    _spawn(run, components)
    return Run(run)


def _spawn(run: RunFolder, components: dict[str, Any]) -> None:
    """In a session of its own: Ctrl-C in this terminal does not reach the run."""
    hashes = {name: entry["sha256"] for name, entry in components.items()}
    with run.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kdlab.run.child", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"KDLAB_COMPONENTS": json.dumps(hashes)},
        )
    _children[process.pid] = process
    born = psutil.Process(process.pid).create_time()
    run.write_status(pid=process.pid, process_started=born)


def _in_a_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


_children: dict[int, "subprocess.Popen[bytes]"] = {}  # so that none stays a zombie


def attach(run_id: str = "last") -> "Run":
    """A run that exists, running or not: by id, by a part of it, or the last one.

    Raises:
        NotFoundError: there is none; names the nearest.
    """
    return Run(folders.find(run_id))


def runs(limit: int = 20) -> list["Run"]:
    """The newest runs, newest first."""
    return [Run(f) for f in reversed(folders.all_folders()[-limit:])]


class Run:
    """Watch, wait for and stop a run. Several of these may look at the same run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self.path: Path = folder.path

    @property
    def status(self) -> dict[str, Any]:
        pid = self.folder.raw_status().get("pid")
        if pid in _children:
            _children[pid].poll()  # reaps it when it has ended
        return self.folder.status()

    @property
    def state(self) -> str:
        """starting, running, finished, failed, stopped, or lost (killed from outside)."""
        return str(self.status.get("state"))

    @property
    def result(self) -> dict[str, Any]:
        """The result of a finished run, with the keys of `kdlab run --json`.

        Raises:
            RunFailed, RunStopped, NotFoundError: it has none, and why.
        """
        status = self.status
        if status.get("state") == "finished":
            result: dict[str, Any] = status["result"]
            return result
        if status.get("state") == "stopped":
            raise RunStopped(
                f"Run {self.id} was stopped by the user; its state is saved.\n"
                f"Go on with:\n    kdlab resume {self.id}"
            )
        if status.get("state") in ("failed", "lost"):
            failure = RunFailed(self._failure(status))
            failure.exit_code = int(status.get("exit_code") or 1)  # 2: its input was wrong
            raise failure
        raise NotFoundError(
            f"Run {self.id} is {status.get('state')}; it has no result yet."
        )

    def _failure(self, status: dict[str, Any]) -> str:
        if status.get("state") == "lost":
            what = "its process was killed from outside or the machine went down"
        else:
            what = str(status.get("error") or "no reason was recorded")
        return (
            f"Run {self.id} failed: {what}\n"
            f"Log: {self.folder.log}\n"
            f"After mending the cause, go on from its last checkpoint:\n"
            f"    kdlab resume {self.id}"
        )

    def events(self, follow: bool = False) -> Iterator[dict[str, Any]]:
        """What happened, in order; `follow` goes on until the run has ended."""
        from kdlab.train.events import EventReader

        read = EventReader(self.folder.events)
        while True:
            ended = self.state in ENDED  # looked at first, so that nothing is missed
            yield from read()
            if ended or not follow:
                return
            time.sleep(_LOOK_S)

    def wait(self, watch: _Watcher | None = None, timeout_s: float | None = None) -> "Run":
        """Until the run has ended; `watch` sees every event.

        Raises:
            TimeoutError: it has not ended after `timeout_s`. The run goes on.
        """
        from kdlab.train.events import EventReader

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        read = EventReader(self.folder.events)
        while True:
            ended = self.state in ENDED
            for event in read():
                if watch is not None:
                    watch(event)
            if ended:
                return self
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.id} has not ended after {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def live(self, renderer: Literal["auto", "canvas", "svg"] = "auto") -> Any:
        """Watch it: in a notebook by a monitor with controls, in a terminal by lines.

        The monitor returns at once, the lines when the run ends. Neither closing nor
        interrupting them touches the run.

        Args:
            renderer: of the notebook's curves; `auto` takes SVG where a page cannot show
                the canvas.
        """
        if _in_a_notebook():
            from kdlab.notebook.monitor import Monitor

            return Monitor(self, renderer).show()
        from kdlab.report.progress import Progress

        try:
            with Progress() as progress:
                self.wait(progress.see)
        except KeyboardInterrupt:
            return self
        if self.state == "finished":
            print(self.table())
        return self

    def table(self) -> str:
        """The members of a finished run side by side, mean ± std over seeds.

        Raises:
            RunFailed, RunStopped, NotFoundError: it has no result, and why.
        """
        from kdlab.report.table import result_table

        return result_table(self.result["runs"])

    def stop(self) -> None:
        """Finish the step, save, end. Once more ends it at once."""
        self._signal(signal.SIGINT)

    def pause(self) -> None:
        """After this step or the next, until `go_on`. Teachers and ranks stay.

        Raises:
            BadInput: it has ended, or is no single student.
        """
        self._order("pause")

    def go_on(self) -> None:
        """After `pause`."""
        self._order("go_on")

    def checkpoint(self) -> None:
        """Save the state after this step."""
        self._order("checkpoint")

    def set(self, **values: float) -> None:
        """Change numbers of the training from the next step on; `knobs` lists them.

            run.set(**{"loss.temperature": 2.0, "lr_factor": 0.5})

        Raises:
            BadInput: unknown, or it has ended.
            SpecError: a value the spec would not allow.
        """
        self._order("set", set=values)

    def knobs(self) -> "list[Knob]":
        """What `set` takes, with values and ranges."""
        from kdlab.run.control import knobs

        return knobs(self.folder)

    def add_teacher(self) -> None:
        """One more in the pool of this run."""
        self._order("add_teacher")

    def drain_teacher(self, name: str) -> None:
        """It answers what it was asked, and leaves."""
        self._order("drain_teacher", name=name)

    def kill_teacher(self, name: str) -> None:
        """SIGKILL; marked as chaos in the run's events."""
        self._order("kill_teacher", name=name)

    def _order(self, event: str, **data: Any) -> None:
        from kdlab.run.control import send

        send(self.folder, event, **data)

    def scale(self, ranks: int) -> None:
        """Have the student's group grow or shrink; it saves, then all begin again there.

        Raises:
            BadInput: the run has no group, or cannot have so many ranks.
        """
        import yaml

        from kdlab.run.rank_orders import ask_for_ranks

        spec = yaml.safe_load((self.path / "spec.yaml").read_text())
        ask_for_ranks(self.folder, spec, ranks)

    def kill(self) -> None:
        """End the run and everything it started, now. Its checkpoints stay."""
        pid = self.folder.raw_status().get("pid")
        if self.state in ENDED or pid is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended in between
            os.killpg(pid, signal.SIGKILL)  # the run leads a process group of its own

    def _signal(self, number: int) -> None:
        pid = self.folder.raw_status().get("pid")
        if self.state not in ENDED and pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended in between
                os.kill(pid, number)

    def __repr__(self) -> str:
        experiment = self.folder.experiment().get("experiment")
        return f"Run({self.id}, {experiment}, {self.state})"

    def _repr_html_(self) -> str:
        status = self.status
        rows = {
            "experiment": self.folder.experiment().get("experiment"),
            "state": self.state,
        }
        rows |= {k: v for k, v in (status.get("result") or {}).items() if k != "runs"}
        body = "".join(
            f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>"
            for k, v in rows.items()
        )
        return f"<b>Run {html.escape(self.id)}</b><table>{body}</table>"
