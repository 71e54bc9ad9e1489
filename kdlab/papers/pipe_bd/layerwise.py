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


def packed(
    blocks: int, devices: int, own_s: _OfBlock, task_s: _OfBlock, *, error: float = 0.0
) -> Packing:
    """Longest processing time first.

    On devices that are alike at most a third above the best packing of what is packed by
    (Graham 1969). Blocks, and devices, that differ by less than the `error` of what was measured
    are taken in their order, so that the packing does not hang on its noise.

    Args:
        blocks: their number.
        devices: their number.
        own_s: seconds of a block by itself on a device, which is packed by.
        task_s: seconds of a block's whole task on a device.
        error: share of a measured time that it may be off.
    """
    tasks: list[list[int]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    left = [(min(own_s(b, d) for d in range(devices)), b) for b in range(blocks)]
    while left:
        longest = max(left)[0]
        # The first of those that may be the longest
        own = next(one for one in left if one[0] >= longest * (1 - error))
        left.remove(own)
        block = own[1]
        done = [loads[d] + own_s(block, d) for d in range(devices)]
        device = next(d for d in range(devices) if done[d] <= min(done) * (1 + error))
        tasks[device].append(block)
        loads[device] += own_s(block, device)
    seconds = (sum(task_s(b, d) for b in own) for d, own in enumerate(tasks))
    return Packing(tuple(map(tuple, tasks)), tuple(seconds))
