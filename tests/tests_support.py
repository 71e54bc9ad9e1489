"""Small things that several test modules need."""

import contextlib
import functools
import itertools
import os
import re
import signal
import socket
import subprocess
import time
import typing
import urllib.request
from pathlib import Path

from msgspec.structs import fields

from kdlab.data.shown import InputSpec
from kdlab.events.event import Event
from kdlab.events.runs import LoggedData


class OfClasses:
    """The part of a data set that an exported model describes."""

    def __init__(self, count):
        self.classes = tuple(f"class {k}" for k in range(count))
        self.shown = InputSpec(size=32)


def documented(command):
    """Keys of the object that `--json` of this command ends with, as docs/json.md names them."""
    rows = (Path(__file__).parents[1] / "docs/json.md").read_text().splitlines()
    (line,) = [row for row in rows if row.startswith(f"| `{command}")]
    return set(re.findall(r"`(\w+)`", line.split("|")[2]))


def trained_ids(batches, epoch):
    """All ids of one epoch, repeats kept."""
    return [int(i) for e, ids in batches if e == epoch for i in ids]


def until(condition, seconds=300.0, every_s=0.02):
    """Wait until a condition is true; return its value. No test depends on the deadline."""
    deadline = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(every_s)  # between looks
    return outcome


def run_folders(folder):
    """Folders of all runs started there, without MLflow's files beside them."""
    return [spec.parent for spec in (folder / "runs").glob("*-*/spec.yaml")]


def ended(process, number=signal.SIGTERM):
    """End another program's server; kill it if that takes more than half a minute."""
    process.send_signal(number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(url):
    """Tell if a server is up."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


@functools.cache
def _ports():
    """Reserve ports below those that systems give out, others for each process of tests.

    Nobody takes one between looking and listening: a process holds its five hundred by a
    name that other sessions see, and that the kernel forgets when the process ends.
    """
    for first in range(31_500, 19_999, -500):
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0kdlab-tests-ports-{first}")
        except OSError:  # somebody else's
            held.close()
            continue
        return held, itertools.count(first)
    raise RuntimeError("24 processes of tests hold all ports")


def free_port():
    """A port of loopback on which nobody listens."""
    return next(port for port in _ports()[1] if not listens(port))


def listens(port):
    """Tell if somebody listens on this port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


_USUAL = {
    int: 0, float: 0.0, str: "", bool: False, list: [], dict: {}, LoggedData: {},
}  # fmt: skip


def event(kind, time=0.0, member="served/seed0", **facts):
    """An event of this kind; a field that is not given has something usual.

    Of the facts of a data set, some may be given.
    A field that the kind does not have fails, unless its other facts stand beside its own.
    """
    cls = Event.KINDS[kind]
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}
    if cls.SPREAD:
        facts[cls.SPREAD] = {name: facts.pop(name) for name in facts.keys() - known.keys()}
    for name, field in known.items():
        if field.required and name not in facts:
            facts[name] = _usual(hints[name])
    if isinstance(facts.get("dataset"), dict):
        usual = {k: _usual(hint) for k, hint in typing.get_type_hints(LoggedData).items()}
        facts["dataset"] = LoggedData(**usual | facts["dataset"])
    return cls(time=time, member=member, **facts)


def _usual(hint):
    options = typing.get_args(hint)
    if type(None) in options:
        return None
    kind = typing.get_origin(hint) or hint
    if kind not in _USUAL and options and not hasattr(kind, "keys"):
        kind = options[0]  # of a union
    return {} if hasattr(kind, "keys") else _USUAL[kind]


# Which examples are tried: `make quick` and `make nightly` say so.
TIER = os.environ.get("EXAMPLES") or ("ci" if os.environ.get("CI") else "dev")


def examples(count, ci=None, quick=None):
    """How many examples a test tries: of Hypothesis, of tables in a loop, of steps.

    All `count` in `make nightly`, `ci` of them in CI and by default, `quick` in `make quick`.
    Without numbers of their own these are all and a tenth. A test with `ci` has the mark
    `tiered`, by which `make nightly` finds it.
    """
    return {"quick": quick or max(1, count // 10), "nightly": count}.get(TIER, ci or count)


def student_card(**facts):
    """The facts that a card beside an exported student must have."""
    known = {"num_classes": 10, "in_chans": 1, "model": {"type": "models/patch_net"}}
    known |= {"mean": [0.5], "std": [0.2], "sha256": "0" * 64}
    return known | facts


def hold(folder):
    """Make this process the one that holds a folder; return what lets go of it."""
    holding = contextlib.ExitStack()
    lock = holding.enter_context(folder.held())
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return holding.close
