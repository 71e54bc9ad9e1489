"""A link that is slow to arrive, where the kernel has no netem: packets wait here.

Opens two TUN devices and passes packets from each to the other after a while. Whoever
starts it puts the devices into the network namespaces of the two hosts; it ends with its
standard input.
"""

import fcntl
import os
import select
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from kdlab.supervision.children import announce, configured

TUN = "/dev/net/tun"
MTU = 9000  # bytes: few packets are work for a process that is no kernel
_MAX = 10_000  # packets under way in each direction, as netem's usual limit
_AT_ONCE = 64
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """The two devices, and how long a packet waits."""

    devices: tuple[str, str]
    delay_ms: float


@dataclass(slots=True)
class _End:
    file: int
    arriving: deque[tuple[float, bytes]] = field(default_factory=deque)  # when, packet


def main() -> None:
    config = configured(RelayConfig)
    near, far = (_End(_opened(name)) for name in config.devices)
    announce(up=True)
    relay(near, far, config.delay_ms / 1e3)


def _opened(name: str) -> int:
    file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


def relay(near: _End, far: _End, delay_s: float) -> None:
    """As long as this process lives."""
    while True:
        for end in (near, far):
            _arrive(end)
        waiting = [end.arriving[0][0] for end in (near, far) if end.arriving]
        left = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        ready, _, _ = select.select([near.file, far.file], [], [], left)
        for end, other in ((near, far), (far, near)):
            if end.file in ready:
                _take(end.file, other.arriving, delay_s)


def _arrive(end: _End) -> None:
    """What has waited long enough."""
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


if __name__ == "__main__":
    main()
