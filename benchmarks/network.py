"""Two network namespaces in place of two hosts, with a link of a given rate between them.

The kernel's token bucket limits the link, and its netem delays it. Where netem is not built in, a
process relays the packets and delays them: it opens two TUN devices, its parent moves them into
the namespaces, and it ends with its parent. Nothing outside the two namespaces is touched, and
both are deleted afterwards.
"""

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count

import psutil

from benchmarks.harness import Scratch
from kdlab.errors import BadInput, ClusterError
from kdlab.supervision.children import announce

TUN = "/dev/net/tun"
MTU = 9000  # bytes: larger packets are fewer, and less work for a relaying process
_MAX = 10_000  # packets under way in each direction, as netem's usual limit
_AT_ONCE = 64
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NEAR, FAR = "10.177.19.1", "10.177.19.2"
_NUMBERS = count()
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class MachineLink:
    """Rate and delay of a link between two machines."""

    mbit_per_s: float | None = None  # in each direction; None leaves it as fast as it is
    delay_ms: float = 0.0  # one way

    @property
    def name(self) -> str:
        rate = "unlimited"
        if self.mbit_per_s is not None:
            rate = f"{self.mbit_per_s:g}mbit"
        return f"{rate}_{self.delay_ms:g}ms" if self.delay_ms else rate


def why_not() -> str | None:
    """Return what is missing to make networks here, or None."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} (Debian: iproute2)"
    # Root in a container may still not make networks: one is made and taken away.
    error = _why_no_namespace()
    return error and f"needs the right to make network namespaces ({error})"


def require() -> None:
    """Check that networks can be made here.

    Raises:
        BadInput: they cannot; says what is missing.
    """
    missing = why_not()
    if missing is not None:
        raise BadInput(f"A link of a given rate {missing}.")


def has_netem() -> bool:
    """Return whether the kernel can delay a link; False too where `why_not` has a reason."""
    delay = "qdisc add dev lo root netem delay 1ms"
    return _why_no_namespace(*delay.split()) is None


@cache
def _why_no_namespace(*words: str) -> str | None:
    """Make a namespace, and run tc in it if given words; return the error, or None."""
    name = f"kdlab-{os.getpid()}-{'netem' if words else 'try'}"
    try:
        _call("ip", "netns", "add", name)
        if words:
            _call("tc", "-n", name, *words)
    except ClusterError as error:
        return str(error)
    finally:
        _tried("ip", "netns", "del", name)
    return None


def delayed_by() -> str | None:
    """Return what can delay packets here: netem, a relaying process (TUN), or None."""
    if has_netem():
        return "netem"
    return "a relaying process" if os.access(TUN, os.R_OK | os.W_OK) else None


@contextmanager
def linked(link: MachineLink) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the command prefixes that enter the two hosts, with addresses NEAR and FAR.

    Raises:
        BadInput: networks cannot be made here.
        ClusterError: the kernel refused.
    """
    require()
    # New names each time: the kernel deletes the links of a namespace some time after it.
    key = f"{os.getpid()}-{next(_NUMBERS)}"
    names = [f"kdlab-{key}-{side}" for side in ("near", "far")]
    ends = [f"kd{key}{side}" for side in ("n", "f")]
    _take_away_orphans()
    waits = link.delay_ms > 0 and not has_netem()
    with Scratch() as open_:
        open_.callback(_take_away, names, ends[0])
        for name in names:
            _call("ip", "netns", "add", name)
        if waits:
            arguments = {"devices": ends, "delay_ms": link.delay_ms}
            open_.calling(relayed, arguments).answer(_PATIENCE_S)
        else:
            _call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, (NEAR, FAR), strict=True):
            _call("ip", "link", "set", end, "netns", name)
            _call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            if waits:
                _call("ip", "-n", name, "link", "set", end, "mtu", str(MTU))
            _call("ip", "-n", name, "link", "set", end, "up")
            _call("ip", "-n", name, "link", "set", "lo", "up")
            _shape(name, end, link, delays=not waits)
        yield tuple(["ip", "netns", "exec", name] for name in names)  # type: ignore[misc]  # two of them


def _take_away(names: list[str], end: str) -> None:
    for name in names:  # the link goes with them
        _tried("ip", "netns", "del", name)
    _tried("ip", "link", "del", end)  # still here if it was never moved


def _take_away_orphans() -> None:
    """Delete networks of processes that were killed before they could."""
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


# The process between two ends


@dataclass(slots=True)
class _End:
    file: int
    arriving: deque[tuple[float, bytes]] = field(default_factory=deque)  # when, packet


def relayed(devices: tuple[str, str], delay_ms: float) -> None:
    """Open two TUN devices and pass packets from each to the other after a delay, for ever."""
    near, far = (_End(_opened(name)) for name in devices)
    announce(up=True)
    while True:
        for end in (near, far):
            _arrive(end)
        waiting = [end.arriving[0][0] for end in (near, far) if end.arriving]
        left = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        ready, _, _ = select.select([near.file, far.file], [], [], left)
        for source, target in ((near, far), (far, near)):
            if source.file in ready:
                _take(source.file, target.arriving, delay_ms / 1e3)


def _opened(name: str) -> int:
    file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


def _arrive(end: _End) -> None:
    """Write the packets that have waited long enough."""
    now = time.monotonic()
    while end.arriving and end.arriving[0][0] <= now:
        try:
            os.write(end.file, end.arriving[0][1])
        except BlockingIOError:  # a moment later
            return
        except OSError:  # the device is down, or not yet up: a packet is lost, as on a wire
            end.arriving.popleft()
            continue
        end.arriving.popleft()


def _take(file: int, to: deque[tuple[float, bytes]], delay_s: float) -> None:
    due = time.monotonic() + delay_s
    for _ in range(_AT_ONCE):
        try:
            packet = os.read(file, MTU + 100)
        except OSError:  # nothing more is there, or the device is down
            return
        if len(to) < _MAX:  # else it is lost: the link is full
            to.append((due, packet))
