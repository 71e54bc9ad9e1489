"""LS, the layerwise baseline (section II-B, after Blakeney et al.): one task per block.

A task trains one student block on a device of its own; the teacher runs from the images up
to that block. Tasks are packed onto devices, the longest first, each where it is done
soonest. The authors' code has one fixed packing for six blocks and four devices.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    tasks: tuple[tuple[int, ...], ...]  # blocks of each device, in the order they are done
    seconds: tuple[float, ...]  # of each device, for one step of each of its tasks

    @property
    def step_s(self) -> float:
        """One step of every block: that of the device with the most to do."""
        return max(self.seconds)


def packed(blocks: int, devices: int, task_s: Callable[[int, int], float]) -> Packing:
    """Longest processing time first; `task_s` is of a block on a device.

    On devices that are alike at most a third above the best packing (Graham 1969).
    """
    tasks: list[list[int]] = [[] for _ in range(devices)]
    seconds = [0.0] * devices
    longest_first = sorted(
        range(blocks), key=lambda b: (-min(task_s(b, d) for d in range(devices)), b)
    )
    for block in longest_first:
        device = min(range(devices), key=lambda d: (seconds[d] + task_s(block, d), d))
        tasks[device].append(block)
        seconds[device] += task_s(block, device)
    return Packing(tuple(map(tuple, tasks)), tuple(seconds))
