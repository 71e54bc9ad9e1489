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


class OfClasses:
    """So much of a data set as an exported model says of it."""

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
    """What a condition comes to; polled, the deadline is generous and no test depends on it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(every_s)  # between looks
    return found


def run_folders(folder):
    """Of all runs started there; beside them lie MLflow's files, a journal among them."""
    return [spec.parent for spec in (folder / "runs").glob("*-*/spec.yaml")]


def ended(process, number=signal.SIGTERM):
    """Has somebody else's server end; one that does not in half a minute is killed."""
    process.send_signal(number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(url):
    """Whether a server is up."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


@functools.cache
def _ports():
    """Below those that systems give to whoever asks for any, others for each process of tests.

    Between looking and listening nobody else takes one: a process holds its five hundred by a
    name that the kernel forgets with it, and that sessions beside this one see, too.
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
    """On loopback; nobody listens there."""
    return next(port for port in _ports()[1] if not listens(port))


def listens(port):
    """Whether somebody does, on loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


_USUAL = {int: 0, float: 0.0, str: "", bool: False, list: [], dict: {}}


def event(kind, time=0.0, member="served/seed0", **facts):
    """An event of this kind; a field that is not given has something usual.

    A field that the kind does not have fails, unless its other facts stand beside its own.
    """
    made = Event.KINDS[kind]
    hints = typing.get_type_hints(made)
    own = {f.name: f for f in fields(made)}
    if made.SPREAD:
        facts[made.SPREAD] = {name: facts.pop(name) for name in facts.keys() - own.keys()}
    for name, field in own.items():
        if field.required and name not in facts:
            facts[name] = _usual(hints[name])
    return made(time=time, member=member, **facts)


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
    """What lies beside an exported student, as far as a card must say it."""
    known = {"num_classes": 10, "in_chans": 1, "model": {"type": "models/patch_net"}}
    known |= {"mean": [0.5], "std": [0.2], "sha256": "0" * 64}
    return known | facts


def hold(folder):
    """From now on this process is that of a folder; what ends it, too, once nobody has it."""
    holding = contextlib.ExitStack()
    lock = holding.enter_context(folder.held())
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return holding.close
