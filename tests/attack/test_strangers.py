"""Others on the same machine try every port, file and process of every kind of run."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import distributed.protocol
import psutil
import pytest
from distributed.protocol import to_serialize
from distributed.protocol.utils import pack_frames_prelude
from tests_support import free_port

import kdlab
from kdlab.cluster.wires.security import Tls
from kdlab.config.home import runs_folder
from kdlab.run import reach
from kdlab.tracking import store

pytestmark = pytest.mark.slow(
    "every port of every kind of run is tried, and the run is real"
)

STRANGER = Path(__file__).with_name("stranger.py").read_text()
NOBODY = 65534
MOST_MB = 100


def dask_message(*messages):
    """Bytes of messages as Dask's TCP connections carry them."""
    found = b""
    for message in messages:
        frames = distributed.protocol.dumps(message)
        prelude = pack_frames_prelude(frames)
        size = len(prelude) + sum(map(len, frames))
        found += size.to_bytes(8, "little") + prelude + b"".join(map(bytes, frames))
    return found.hex()


class Stranger:
    """A process of another user, or of the same one that knows nothing."""

    def __init__(self, user, folder):
        who = [] if user is None else [str(user)]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", STRANGER, *who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
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
        found = json.loads(self.process.stdout.readline())
        self.attempts += found["attempts"]
        self.breaches += [f"{program} {breach}" for breach in found["breaches"]]
        self.programs.add(program)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        assert not self.marker.exists(), "code of a stranger ran"


@pytest.fixture
def strangers(tmp_path_factory):
    """Makes one: of another user where this one may become it, else of the same."""
    made = []

    def make(user=NOBODY):
        user = user if os.getuid() == 0 else None
        made.append(Stranger(user, tmp_path_factory.mktemp("stranger")))
        return made[-1]

    yield make
    for stranger in made:
        stranger.close()


class Thief:
    """Comes first at every port, from before a run until after its end."""

    def __init__(self):
        user = [str(NOBODY)] if os.getuid() == 0 else []
        source = Path(__file__).with_name("thief.py").read_text()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", source, *user],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self.process.stdout.readline() == "ready\n"

    def end(self):
        """How often it was let in."""
        came, _ = self.process.communicate("end\n")
        assert self.process.returncode == 0
        return int(came)


@pytest.fixture
def thief():
    made = Thief()
    yield made
    if made.process.poll() is None:
        made.end()


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


def belongings_of(run, processes):
    """Files of a run: its folder, what lies in it, and shared memory of its processes.

    `os.walk` and not `rglob`, which fails where a folder goes while it is read: a run
    deletes the rounds that it needs no more.
    """
    for folder, folders, files in os.walk(run.path):
        yield from (Path(folder, name) for name in folders + files)
    yield from Path("/dev/shm").glob("*kdlab*")


def students_of(run):
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.glob("members/**/student.safetensors"))
    }


def attacked_until_its_end(run, *strangers):
    """Every port as it appears, again and again; bytes that the attacked grew meanwhile."""
    seen, most = set(), 0
    while run.state in ("starting", "running"):
        processes = tree_of(run.status.pid)
        if not seen:  # what lies there, though nobody may listen yet
            all_attack(strangers, 0, run.status.pid or 0, "", run, processes)
        for port, pid, words in ports_of(processes):
            program = reach.program_of(words)
            before = memory_of({pid: psutil.Process(pid)}) if pid in processes else 0
            with contextlib.suppress(psutil.Error):
                all_attack(strangers, port, pid, program, run, processes)
                if (port, pid) in seen:  # at the first time it may just begin its work
                    most = max(most, memory_of({pid: psutil.Process(pid)}) - before)
            seen.add((port, pid))
    return most


def all_attack(strangers, port, pid, program, run, processes):
    """At the same time."""
    files = list(belongings_of(run, processes))
    for stranger in strangers:
        stranger.begin(port, pid, files)
    for stranger in strangers:
        stranger.end(program)


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
    "served": ["smoke/served", "train.epochs=100"],
    "ranks": [
        "smoke/in_process",
        "train.epochs=12",
        "aggregation.type=train/aggregation/all_reduce",
    ],
    "pipeline": ["smoke/blockwise", "train.epochs=20"],
    # Files: its workers do not listen.
    "ensemble": ["smoke/ensemble", "train.epochs=6", {"method.compare": TWO_METHODS}],
}
PROGRAMS = {
    "served": {"teacher_server", "scheduler_process"},
    "ranks": {"rank"},
    "pipeline": {"rank"},
    "ensemble": {""},
}
# Another user; and the same one, who knows no secret: a program that was tricked.
USERS = {"served": (NOBODY, None)}


@pytest.mark.parametrize("kind", RUNS)
def test_no_stranger_gets_into_a_run(kind, strangers, thief, kdlab_home, elsewhere):
    attackers = [strangers(user) for user in USERS.get(kind, (NOBODY,))]
    attacked = kdlab.load(*RUNS[kind]).start(lambda line: None)
    most = attacked_until_its_end(attacked, *attackers)
    assert attacked.wait().state == "finished"
    for stranger in attackers:
        assert stranger.breaches == []
        tried = {name.rpartition(".")[2] for name in stranger.programs}
        assert tried >= PROGRAMS[kind]
    assert most < MOST_MB * 2**20
    assert thief.end() or kind == "ensemble"  # which listens nowhere
    if kind == "served":  # its last bits depend on which teacher answers when
        result = attacked.status.result
        assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    else:
        quiet = kdlab.load(*RUNS[kind]).start(lambda line: None)
        quiet.wait()
        assert students_of(attacked) == students_of(quiet) != {}


def test_no_stranger_gets_into_a_sweep(strangers, thief, kdlab_home, elsewhere):
    """Its trials share a pool."""
    stranger = strangers()
    sweep = kdlab.sweep(
        {
            "experiment": "smoke/served",
            "overrides": {"train.epochs": 25},
            "confirm": None,
            "tracking": {"enabled": False},
            "space": {"train.lr": {"low": 0.01, "high": 0.1}},
            "objectives": [{"metric": "validation_top1"}],
            "trials": 3,
            "jobs": 1,
        },
        say=lambda line: None,
    )
    most = attacked_until_its_end(sweep, stranger)
    assert sweep.wait().state == "finished"
    assert stranger.breaches == []
    assert most < MOST_MB * 2**20
    assert "kdlab.cluster.teachers.teacher_server" in stranger.programs


def test_no_stranger_gets_into_mlflow(strangers, thief, kdlab_home, elsewhere):
    stranger = strangers()
    runs_folder().mkdir(parents=True)
    kept = store.client(f"sqlite:///{runs_folder() / 'mlflow.db'}")
    kept.log_param(kept.create_run(kept.create_experiment("mine")).info.run_id, "lr", 0.1)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "kdlab", "ui", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        next(line for line in server.stdout if line.startswith("MLflow: "))
        for listens, pid, words in ports_of(tree_of(server.pid)):
            stranger.attack(listens, pid, reach.program_of(words))
        assert stranger.attempts > 100
        assert stranger.breaches == []
    finally:
        server.terminate()
        server.wait()
