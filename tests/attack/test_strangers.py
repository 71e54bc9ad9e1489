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

import kdlab
from kdlab.cluster.wires.security import Tls
from kdlab.run import reach

pytestmark = pytest.mark.slow

STRANGER = Path(__file__).with_name("stranger.py").read_text()
NOBODY = 65534
USERS = [pytest.param(NOBODY, marks=pytest.mark.skipif(os.getuid() != 0, reason="needs root")),
         None]  # fmt: skip
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
        order = {"port": port, "pid": pid, "dask": self.dask, "cert": self.certificate}
        if self.user is not None and pid:
            order["files"] = [str(path) for path in files]
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        self.attempts += found["attempts"]
        self.breaches += [f"{program} {breach}" for breach in found["breaches"]]
        self.programs.add(program)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        assert not self.marker.exists(), "code of a stranger ran"


@pytest.fixture(params=USERS, ids=["another user", "same user"])
def stranger(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    found = Stranger(request.param, folder)
    yield found
    found.close()


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
    """Files of a run: its folder, what lies in it, and shared memory of its processes."""
    yield from run.path.rglob("*")
    yield from Path("/dev/shm").glob("*kdlab*")


def students_of(run):
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.glob("members/**/student.safetensors"))
    }


def attacked_until_its_end(run, stranger):
    """Every port as it appears, again and again; bytes that the attacked grew meanwhile."""
    seen, most = set(), 0
    while run.state in ("starting", "running"):
        processes = tree_of(run.status.pid)
        for port, pid, words in ports_of(processes):
            program = reach.program_of(words)
            before = memory_of({pid: psutil.Process(pid)}) if pid in processes else 0
            with contextlib.suppress(psutil.Error):
                stranger.attack(port, pid, program, belongings_of(run, processes))
                if (port, pid) in seen:  # at the first time it may just begin its work
                    most = max(most, memory_of({pid: psutil.Process(pid)}) - before)
            seen.add((port, pid))
    return most


RUNS = {
    "served": (["smoke/served", "train.epochs=400"], {"teacher_server", "scheduler_process"}),
    "ranks": (
        ["smoke/in_process", "train.epochs=40", "aggregation.type=train/aggregation/all_reduce"],
        {"rank"},
    ),
    "pipeline": (["smoke/blockwise", "train.epochs=80"], {"rank"}),
    "ensemble": (["smoke/ensemble", "train.epochs=20"], set()),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_no_stranger_gets_into_a_run(kind, stranger, kdlab_home, elsewhere):
    words, programs = RUNS[kind]
    attacked = kdlab.load(*words).start(lambda line: None)
    most = attacked_until_its_end(attacked, stranger)
    assert attacked.wait().state == "finished"
    assert stranger.breaches == []
    assert most < MOST_MB * 2**20
    found = {program.rpartition(".")[2] for program in stranger.programs}
    assert programs <= found
    if kind == "served":
        lineage = [e for e in attacked.events() if e.kind == "member_done"]
        assert lineage
    else:
        quiet = kdlab.load(*words).start(lambda line: None)
        quiet.wait()
        assert students_of(attacked) == students_of(quiet) != {}
