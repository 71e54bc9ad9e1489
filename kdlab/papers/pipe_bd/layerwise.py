"""LS, the layerwise baseline (section II-B, after Blakeney et al.): one task per block.

A task trains one student block on one device; the teacher runs from the images up to that block.
Tasks are packed by the cost of their block alone, the longest first, each on the device where it
ends soonest; the time of a device is that of its whole tasks, teachers included. The authors' code
has one fixed packing for six blocks and four devices.
"""

from collections.abc import Callable
from dataclasses import dataclass

_OfBlock = Callable[[int, int], float]  # seconds of a block on a device


@dataclass(frozen=True, slots=True)
class Packing:
    tasks: tuple[tuple[int, ...], ...]  # blocks of each device, in their order
    seconds: tuple[float, ...]  # of each device, for one step of each of its tasks

    @property
    def step_s(self) -> float:
        """Seconds of one step of every block, on the device with the most work."""
        return max(self.seconds)


def packed(
    blocks: int, devices: int, own_s: _OfBlock, task_s: _OfBlock, *, error: float = 0.0
) -> Packing:
    """Pack tasks onto devices, longest processing time first.

    On equal devices at most a third above the best packing (Graham 1969). Blocks and devices that
    differ by less than the `error` are taken in their order, so that noise does not decide.

    Args:
        blocks: their number.
        devices: their number.
        own_s: seconds of a block alone on a device, by which tasks are packed.
        task_s: seconds of a block's whole task on a device.
        error: relative error of a measured time.
    """
    tasks: list[list[int]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    # II-B: "bin packing algorithm to balance the workload"; which one the paper does not say
    left = [(min(own_s(b, d) for d in range(devices)), b) for b in range(blocks)]
    while left:
        longest = max(left)[0]
        # The first of those that may be the longest
        task = next(t for t in left if t[0] >= longest * (1 - error))
        left.remove(task)
        block = task[1]
        done = [loads[d] + own_s(block, d) for d in range(devices)]
        device = next(d for d in range(devices) if done[d] <= min(done) * (1 + error))
        tasks[device].append(block)
        loads[device] += own_s(block, device)
    # II-B: LS "still has redundant teacher executions"
    seconds = (sum(task_s(b, d) for b in own) for d, own in enumerate(tasks))
    return Packing(tuple(map(tuple, tasks)), tuple(seconds))
