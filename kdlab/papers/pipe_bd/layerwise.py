"""LS, the layerwise baseline (section II-B, after Blakeney et al.): one task per block.

A task trains one student block on a device of its own; the teacher runs from the images up
to that block. Tasks are packed onto devices by what each block costs by itself, the longest
first, each where it is done soonest; the time of a device is that of its whole tasks, whose
teachers run again. The authors' code has one fixed packing for six blocks and four devices.
"""

from collections.abc import Callable
from dataclasses import dataclass

_OfBlock = Callable[[int, int], float]  # of a block on a device


@dataclass(frozen=True, slots=True)
class Packing:
    tasks: tuple[tuple[int, ...], ...]  # blocks of each device, in the order they are done
    seconds: tuple[float, ...]  # of each device, for one step of each of its tasks

    @property
    def step_s(self) -> float:
        """One step of every block: that of the device with the most to do."""
        return max(self.seconds)


def packed(blocks: int, devices: int, own_s: _OfBlock, task_s: _OfBlock) -> Packing:
    """Longest processing time first.

    On devices that are alike at most a third above the best packing of what is packed by
    (Graham 1969).

    Args:
        blocks: their number.
        devices: their number.
        own_s: seconds of a block by itself on a device, which is packed by.
        task_s: seconds of a block's whole task on a device.
    """
    tasks: list[list[int]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    longest_first = sorted(
        range(blocks), key=lambda b: (-min(own_s(b, d) for d in range(devices)), b)
    )
    for block in longest_first:
        device = min(range(devices), key=lambda d: (loads[d] + own_s(block, d), d))
        tasks[device].append(block)
        loads[device] += own_s(block, device)
    seconds = (sum(task_s(b, d) for b in own) for d, own in enumerate(tasks))
    return Packing(tuple(map(tuple, tasks)), tuple(seconds))
