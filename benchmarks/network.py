"""Two hosts that are none: network namespaces with a link of a given rate between them.

The kernel's own token bucket limits the link. Its netem delays it; where that is not built in,
a process relays the packets and lets them wait (benchmarks/delay_relay.py). Nothing outside
the two namespaces is touched, and both are gone afterwards.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count

import psutil

from benchmarks.delay_relay import MTU, TUN, RelayConfig
from benchmarks.harness import Scratch
from kdlab.errors import BadInput, ClusterError

NEAR, FAR = "10.177.19.1", "10.177.19.2"
_NUMBERS = count()
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class MachineLink:
    """Between two machines."""

    mbit_per_s: float | None = None  # in each direction; None leaves it as fast as it is
    delay_ms: float = 0.0  # one way

    @property
    def name(self) -> str:
        rate = "unlimited"
        if self.mbit_per_s is not None:
            rate = f"{self.mbit_per_s:g}mbit"
        return f"{rate}_{self.delay_ms:g}ms" if self.delay_ms else rate


def why_not() -> str | None:
    """What is missing to make networks here; None when nothing is."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} (Debian: iproute2)"
    return _refused()


def require() -> None:
    """Whether networks can be made here.

    Raises:
        BadInput: they cannot, and what is missing.
    """
    missing = why_not()
    if missing is not None:
        raise BadInput(f"A link of a given rate {missing}.")


@cache
def _refused() -> str | None:
    """Root in a container may still not make networks: one is made and taken away."""
    name = f"kdlab-{os.getpid()}-try"
    try:
        _call("ip", "netns", "add", name)
    except ClusterError as error:
        return f"needs the right to make network namespaces ({error})"
    _call("ip", "netns", "del", name)
    return None


@cache
def has_netem() -> bool:
    """Whether the kernel itself can delay a link; there must be nothing in the way (why_not)."""
    name = f"kdlab-{os.getpid()}-netem"
    _call("ip", "netns", "add", name)
    try:
        _call(
            "tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"
        )
    except ClusterError:
        return False
    finally:
        _call("ip", "netns", "del", name)
    return True


def delayed_by() -> str | None:
    """What would let packets wait here: netem, a relaying process (TUN), or nothing."""
    if has_netem():
        return "netem"
    return "a relaying process" if os.access(TUN, os.R_OK | os.W_OK) else None


@contextmanager
def linked(link: MachineLink) -> Iterator[tuple[list[str], list[str]]]:
    """The words that enter each of the two hosts, which have addresses NEAR and FAR.

    Raises:
        BadInput: networks cannot be made here.
        ClusterError: the kernel refused.
    """
    require()
    # Names of their own: the kernel takes the links of a namespace away some time after it.
    own = f"{os.getpid()}-{next(_NUMBERS)}"
    names = [f"kdlab-{own}-{side}" for side in ("near", "far")]
    ends = [f"kd{own}{side}" for side in ("n", "f")]
    _take_away_orphans()
    relayed = link.delay_ms > 0 and not has_netem()
    with Scratch() as open_:
        open_.callback(_take_away, names, ends[0])
        for name in names:
            _call("ip", "netns", "add", name)
        if relayed:
            _relay(open_, ends, link.delay_ms)
        else:
            _call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, (NEAR, FAR), strict=True):
            _call("ip", "link", "set", end, "netns", name)
            _call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            if relayed:
                _call("ip", "-n", name, "link", "set", end, "mtu", str(MTU))
            _call("ip", "-n", name, "link", "set", end, "up")
            _call("ip", "-n", name, "link", "set", "lo", "up")
            _shape(name, end, link, delays=not relayed)
        yield tuple(["ip", "netns", "exec", name] for name in names)  # type: ignore[misc]  # two of them


def _relay(open_: Scratch, ends: list[str], delay_ms: float) -> None:
    """A process that makes both ends and passes packets from each to the other."""
    config = RelayConfig(devices=(ends[0], ends[1]), delay_ms=delay_ms)
    open_.child("benchmarks.delay_relay", config, "relay").answer(_PATIENCE_S)


def _take_away(names: list[str], end: str) -> None:
    for name in names:  # the link goes with them
        _tried("ip", "netns", "del", name)
    _tried("ip", "link", "del", end)  # one that was made and never moved


def _take_away_orphans() -> None:
    """Networks of a process that was killed before it could."""
    known = _tried("ip", "netns", "list").stdout
    for name, pid in re.findall(r"^(kdlab-(\d+)-\S+)", known, re.MULTILINE):
        if not psutil.pid_exists(int(pid)):
            _tried("ip", "netns", "del", name)


def _shape(name: str, end: str, link: MachineLink, *, delays: bool) -> None:
    if link.mbit_per_s is not None:
        # A millisecond's worth at once, and at least some packets.
        burst = max(16_000, round(link.mbit_per_s * 125))
        _call(
            "tc", "-n", name, "qdisc", "add", "dev", end, "root", "handle", "1:", "tbf",
            "rate", f"{link.mbit_per_s:g}mbit", "burst", str(burst), "latency", "50ms",
        )  # fmt: skip
    if link.delay_ms and delays:
        parent = ["parent", "1:"] if link.mbit_per_s is not None else ["root"]
        _call(
            "tc", "-n", name, "qdisc", "add", "dev", end, *parent, "netem",
            "delay", f"{link.delay_ms:g}ms", "limit", "10000",
        )  # fmt: skip


def _tried(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _call(*words: str) -> None:
    done = _tried(*words)
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
