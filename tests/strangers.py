"""Attackers on the same machine, and the kinds of runs that they attack: tests/attack."""

import contextlib
import functools
import hashlib
import json
import operator
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import distributed.protocol
import psutil
from distributed.protocol import to_serialize
from distributed.protocol.utils import pack_frames_prelude
from tests_support import free_port, listens, until

import kdlab
from kdlab.cluster.transport.security import Tls
from kdlab.config.home import runs_folder
from kdlab.experiment.folder import ENDED
from kdlab.run import port_audit
from kdlab.run.handle.job_handle import JobHandle
from kdlab.tracking import store

NOBODY = 65534


def dask_message(*messages):
    """Bytes of messages as Dask's TCP connections carry them."""
    raw = b""
    for message in messages:
        frames = distributed.protocol.dumps(message)
        prelude = pack_frames_prelude(frames)
        size = len(prelude) + sum(map(len, frames))
        raw += size.to_bytes(8, "little") + prelude + b"".join(map(bytes, frames))
    return raw.hex()


def _program(name, user):
    """Start a program of another user, or of this one for None; orders to it are lines."""
    source = Path(__file__).with_name("attack") / name
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            source.read_text(),
            *[str(user)][: user is not None],
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


class Stranger:
    """A process of another user, or of the same one, without secrets of a run."""

    def __init__(self, user, folder):
        self.process = _program("stranger.py", user)
        self.user, self.marker = user, folder / "code-ran"
        files = Tls(temporary=True).files(folder)
        self.certificate = "".join(
            Path(files[part]).read_text() for part in ("cert", "key")
        )
        run = {"op": "run_function", "reply": True, "kwargs": {},
               "function": to_serialize(os.system),
               "args": to_serialize((f"touch {self.marker}",))}  # fmt: skip
        hello = {"compression": None, "python": (3, 11, 0), "pickle-protocol": 5}
        status = {"op": "identity", "reply": True}
        self.dask = [dask_message(hello, run), dask_message(hello, status), "ff" * 9]
        self.attempts, self.breaches, self.programs = 0, [], set()

    def attack(self, port=0, pid=0, program="", files=()):
        self.begin(port, pid, files)
        self.end(program)

    def begin(self, port=0, pid=0, files=()):
        order = {"port": port, "pid": pid, "dask": self.dask, "cert": self.certificate}
        if self.user is not None and pid:
            order["files"] = [str(path) for path in files]
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def end(self, program=""):
        report = json.loads(self.process.stdout.readline())
        self.attempts += report["attempts"]
        self.breaches += [f"{program} {breach}" for breach in report["breaches"]]
        self.programs.add(program)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        assert not self.marker.exists(), "code of a stranger ran"


class Thief:
    """Comes first at every port, from before a run until after its end."""

    def __init__(self):
        self.process = _program("thief.py", NOBODY if os.getuid() == 0 else None)
        assert self.process.stdout.readline() == "ready\n"

    def end(self):
        """How often it was let in."""
        came, _ = self.process.communicate("end\n")
        assert self.process.returncode == 0
        return int(came)


def tree_of(pid):
    with contextlib.suppress(psutil.Error):
        main = psutil.Process(pid)
        return {p.pid: p for p in [main, *main.children(recursive=True)]}
    return {}


def memory_of(processes):
    total = 0
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().uss
    return total


def ports_of(processes):
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.port, process.pid, process.cmdline()


def belongings_of(run, *folders):
    """Files of a run: its folder, what lies in it and in others, shared memory of its processes.

    `os.walk` and not `rglob`, which fails where a folder goes while it is read: a run
    deletes the rounds that it needs no more.
    """
    for root in (run.path, *folders):
        for folder, inside, files in os.walk(root):
            yield from (Path(folder, name) for name in inside + files)
    yield from Path("/dev/shm").glob("*kdlab*")


def students_of(run):
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.glob("members/**/student.safetensors"))
    }


# Each kind of run


TWO_METHODS = {
    "ma_dnn": {"aggregation": {"type": "train/aggregation/model_average", "tau": 4}},
    "ec_dnn": {
        "aggregation": {
            "type": "train/aggregation/ensemble",
            "tau": 8,
            "compression": {"type": "train/compression/distillation", "p_iterations": 2},
        }
    },
}
RUNS = {
    "served": ["smoke/served"],
    "ranks": ["smoke/in_process", "aggregation.type=train/aggregation/all_reduce"],
    "pipeline": ["smoke/blockwise"],
    "ensemble": ["smoke/ensemble", {"method.compare": TWO_METHODS}],
    "remote": ["smoke/served"],
}
SAME_EACH_TIME = (
    "ranks",
    "pipeline",
    "ensemble",
)  # bits of others depend on who answers when
KINDS = (*RUNS, "sweep")


@dataclass
class Begun:
    """A run or a sweep, and what was started for it."""

    run: JobHandle
    pool: Sequence["subprocess.Popen[bytes]"] = ()
    folders: Sequence[Path] = ()  # with secrets

    def processes(self):
        trees = [tree_of(p.pid) for p in self.pool]
        family = {process.pid: process for process in self.run.folder.family()}
        return functools.reduce(operator.or_, trees, family)

    def attacked_until_its_end(self, *strangers):
        """Attack every port, again and again; return the bytes that a process grew by."""
        run, seen, most = self.run, set(), 0
        while run.state not in ENDED:
            processes = self.processes()
            if not seen:  # what lies there, though nobody may listen yet
                self._attacked(strangers, 0, next(iter(processes), 0), "")
            ports = list(ports_of(processes))
            random.shuffle(ports)  # a short run ends before all were tried
            for port, pid, words in ports:
                if run.state in ENDED:  # a pool may live on
                    break
                before = memory_of({pid: processes[pid]})
                self._attacked(strangers, port, pid, port_audit.program_of(words))
                if (port, pid) in seen:  # at the first time it may just begin its work
                    most = max(most, memory_of({pid: processes[pid]}) - before)
                seen.add((port, pid))
        return most

    def attacked_after_its_end(self, *strangers):
        """Attack programs of a pool that lives on, if the run ended before they were tried."""
        for port, pid, words in ports_of(self.processes()):
            program = port_audit.program_of(words)
            if any(program not in stranger.programs for stranger in strangers):
                self._attacked(strangers, port, pid, program)

    def _attacked(self, strangers, port, pid, program):
        """Let all strangers attack at the same time."""
        files = list(belongings_of(self.run, *self.folders))
        for stranger in strangers:
            stranger.begin(port, pid, files)
        for stranger in strangers:
            stranger.end(program)

    def complete(self):
        """Assert that it finished and that each served sample was trained on once."""
        assert self.run.wait().state == "finished", self.run.status.error
        lost = (
            self.run.status.result.get("samples_lost"),
            self.run.status.result.get("samples_repeated"),
        )
        assert lost in ((0, 0), (None, None))


@contextlib.contextmanager
def begun(kind, epochs, folder):
    """Start a run or sweep of this kind; its pool ends with the block."""
    if kind == "sweep":
        tree = {
            "experiment": "smoke/served",
            "overrides": {"train.epochs": epochs},
            "confirm": None,
            "tracking": {"enabled": False},
            "space": {"train.lr": {"low": 0.01, "high": 0.1}},
            "objectives": [{"metric": "validation_top1"}],
            "trials": 3,
            "jobs": 1,
        }
        yield Begun(kdlab.sweep(tree, say=lambda line: None))
        return
    with contextlib.ExitStack() as block:
        words, pool = [], ()
        if kind == "remote":
            words, pool = block.enter_context(_remote_pool(folder))
        experiment = kdlab.load(*RUNS[kind], *words, f"train.epochs={epochs}")
        yield Begun(experiment.start(lambda line: None), pool, [folder][: bool(pool)])


@contextlib.contextmanager
def _remote_pool(folder):
    """A scheduler and two teachers as users start them; words of a run with it, and processes."""
    files = Tls(temporary=True).files(folder)
    port, spec = free_port(), {name: files[name] for name in ("ca", "cert", "key")}
    address, log = f"tls://127.0.0.1:{port}", (folder / "pool.log").open("ab")
    keys = ["--tls-cert", files["cert"], "--tls-key", files["key"]]

    def started(*words):
        # Pages of a scheduler ask nobody who they are: docs/cluster.md leaves them away, too.
        no_pages = {"DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]"}
        pool.append(
            subprocess.Popen(
                [sys.executable, "-m", *words, *keys],
                stdout=log,
                stderr=log,
                env=os.environ | no_pages,
            )
        )

    pool = []
    try:
        started("dask", "scheduler", "--no-dashboard", "--protocol", "tls",
                "--tls-ca-file", files["ca"], "--host", "127.0.0.1", "--port", str(port),
                "--preload", "kdlab.cluster.coordinator")  # fmt: skip
        until(lambda: listens(port))
        for name in ("one", "two"):
            started("kdlab", "teacher", address, "--name", name, "--threads", "1",
                    "--tls-ca", files["ca"])  # fmt: skip
        spec = {
            "type": "cluster/remote_pool",
            "address": address,
            "tls": spec,
            "engine": "eager",
            "wait_s": 600.0,  # two Pythons with torch, on a machine that does something else
        }
        yield [{"teacher_pool": spec}], pool
    finally:
        for process in reversed(pool):
            process.terminate()
        for process in pool:
            process.wait()
        log.close()


@contextlib.contextmanager
def mlflow_pages():
    """`kdlab ui` over a store that nobody may change: its process."""
    database = runs_folder() / "mlflow.db"
    if not database.exists():
        runs_folder().mkdir(parents=True, exist_ok=True)
        client = store.client(f"sqlite:///{database}")
        run = client.create_run(client.create_experiment("mine"))
        client.log_param(run.info.run_id, "lr", 0.1)

    def kept_there():
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return list(connection.iterdump())

    before, port = kept_there(), free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "kdlab", "ui", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        next(line for line in server.stdout if line.startswith("MLflow: "))
        yield server
    finally:
        server.terminate()
        server.wait()
    assert kept_there() == before
