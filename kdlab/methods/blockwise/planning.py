"""The profile of a group of devices, measured by all of them at the same time.

Each rank measures every block while the others do, as in training: a neighbour that
computes slows a core, and memory is shared. Ranks on the same type of device are one type
and give one median. Each type has its own link, the slowest way that its devices have to others.

A profile can be kept and used again. It says which machines and which blocks it is of; a
plan from another one's profile would be a guess, so that is refused.
"""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from kdlab.codec import Amount, MessageError, part_of, to_builtins
from kdlab.config.home import read_as, write_json
from kdlab.errors import BadInput
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.supervision.process_groups import from_all, from_first

_LINK_BYTES = (4_096, 4_194_304)
_LINK_TRIES = 9
PLAN = "plan.json"  # of a member


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies what a profile was measured on, and with."""

    machine: str  # processors, devices, PyTorch; of all ranks where these differ
    model: str  # both networks, their cuts, and the shape of an image
    batch: int  # rows


def of_machines(own: Identity, machines: Sequence[str]) -> Identity:
    """The identity of a profile that ranks on these machines make together."""
    if len(set(machines)) == 1:
        return own
    joined = hashlib.sha256(" ".join(sorted(machines)).encode()).hexdigest()[:16]
    return replace(own, machine=joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptProfile(Profile):
    """A `Profile` on disk: without memory, which every session asks for anew."""

    identity: Identity

    def __post_init__(self) -> None:
        blocks = [block for kind in self.types.values() for block in kind]
        if not self.devices or not {*self.devices} <= {*self.types}:
            raise ValueError("its devices are not among its types")
        if len({len(kind) for kind in self.types.values()}) != 1 or not blocks:
            raise ValueError("its types do not have as many blocks each")
        if not all(b.teacher_s and b.student_s for b in blocks):
            raise ValueError("a block has no times")
        links = (self.link, *self.links.values())
        if not all(n >= 0 for n in _numbers(asdict(self))) or not all(
            link.bytes_per_s > 0 for link in links
        ):
            raise ValueError("a time, size or rate is below 0 or no number")


def _numbers(of: object) -> Iterator[float]:
    """All that it holds, keys too."""
    if isinstance(of, float | int):
        yield of
    elif isinstance(of, dict | list | tuple):
        for part in (*of, *of.values()) if isinstance(of, dict) else of:
            yield from _numbers(part)


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A member's plan.json: other devices, or these in another order, plan anew."""

    programme: ExecutionPlan
    table: str
    ideal_s: dict[str, Amount]  # seconds of a step, by part
    devices: tuple[str, ...]  # their types

    def __post_init__(self) -> None:
        stages = [s for plan in self.programme.plans for s in plan.stages]
        used = {device for stage in stages for device in stage.devices}
        if not used or not used <= {*range(len(self.devices))}:
            raise ValueError("its plan is not for its devices")


def write_profile(profile: Profile, of: Identity, path: Path) -> None:
    """As JSON, for people and for `method.profile`."""
    write_json(
        path, to_builtins(profile) | {"memory_bytes": None, "identity": to_builtins(of)}
    )


def read_profile(path: Path, of: Identity, *, any_machine: bool = False) -> Profile:
    """What `write_profile` wrote.

    Raises:
        BadInput: no such file, no profile, or one of another machine, model or batch.
    """
    try:
        kept = read_as(
            _KeptProfile,
            path,
            "Set method.profile to null to measure one; every run keeps its own as profile.json.",
        )
    except MessageError as error:
        raise BadInput(f"There is no profile at {path}: {error}") from error
    for what in ("model", "batch") if any_machine else ("machine", "model", "batch"):
        was, now = getattr(kept.identity, what), getattr(of, what)
        if was != now:
            raise BadInput(
                f"{path} was measured on another {what} ({was}, here {now}); its times mean "
                "nothing for this run. Set method.profile to null to measure again."
            )
    return part_of(replace(kept, devices=tuple(kept.devices)), Profile)


def gathered(own: Sequence[Block], device: torch.device, load_s: float) -> Profile:
    """The profile of all ranks of the default group; every rank must call this."""
    said = kind_of(device), list(own), load_s
    everyone = from_all(said, tuple[str, list[Block], float])
    kinds = [kind for kind, _, _ in everyone]
    types = {
        name: _middle([blocks for k, blocks, _ in everyone if k == name])
        for name in dict.fromkeys(kinds)
    }
    return Profile(
        types=types,
        devices=tuple(kinds),
        links=measured_links(device),
        load_s=median(s for *_, s in everyone),
        # A CPU loads with the processor that computes; where some do, all are taken to.
        load_overlap=min(from_all(0.0 if device.type == "cpu" else 1.0, float)),
    )


def in_order_of(kinds: Sequence[str], profile: Profile) -> Profile | None:
    """The profile for devices that stand in this order; None where they are others."""
    if sorted(kinds) != sorted(profile.devices):
        return None
    return replace(profile, devices=tuple(kinds))


def _middle(measured: Sequence[Sequence[Block]]) -> list[Block]:
    """Medians over the ranks of one type."""

    def of(times: Sequence[Mapping[int, float]]) -> dict[int, float]:
        return {rows: median(t[rows] for t in times) for rows in times[0]}

    return [
        Block(
            teacher_s=of([b.teacher_s for b in same]),
            student_s=of([b.student_s for b in same]),
            output_bytes=same[0].output_bytes,
            gradient_bytes=same[0].gradient_bytes,
            fixed_bytes=same[0].fixed_bytes,
            row_bytes=same[0].row_bytes,
            norms=same[0].norms,
        )
        for same in zip(*measured, strict=True)
    ]


def measured_links(device: torch.device) -> dict[str, DeviceLink]:
    """The link of each type of device, there and back between two ranks; all must call this.

    Where a type is on several machines, between two of these. On CPUs a transfer is copied by the
    processors that compute, so nothing of it overlaps.
    """
    said = kind_of(device), platform.node()
    kinds, hosts = zip(*from_all(said, tuple[str, str]), strict=True)
    overlaps = from_all(0.0 if device.type == "cpu" else 1.0, float)
    if len(kinds) == 1:
        return {kinds[0]: DeviceLink(overlap=overlaps[0])}
    meet_s = _meeting_s(device)
    found = {}
    for kind in dict.fromkeys(kinds):
        first = kinds.index(kind)
        pair = first, partner_of(first, kinds, hosts)
        small, large = (_there_and_back(size, device, pair) for size in _LINK_BYTES)
        small, large = from_all((small, large), tuple[float, float])[first]
        rate = (_LINK_BYTES[1] - _LINK_BYTES[0]) / max(1e-9, large - small)
        found[kind] = DeviceLink(
            bytes_per_s=rate,
            latency_s=max(0.0, small - _LINK_BYTES[0] / rate),
            overlap=overlaps[first],
            meet_s=meet_s,
        )
    return found


def partner_of(first: int, kinds: Sequence[str], hosts: Sequence[str]) -> int:
    """The rank that another one's link is measured with: of its type, on another machine."""
    others = [rank for rank in range(len(kinds)) if rank != first]
    return min(
        others, key=lambda r: (kinds[r] != kinds[first], hosts[r] == hosts[first], r)
    )


def _meeting_s(device: torch.device) -> float:
    """Seconds in which all ranks meet for next to nothing."""
    little = torch.zeros(64, device=device)

    def meet() -> None:
        dist.all_reduce(little)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return from_first(_median_s(meet), float)


def _there_and_back(size: int, device: torch.device, pair: tuple[int, int]) -> float:
    """Seconds one way between two ranks: half the median of some round trips."""
    data, rank = torch.zeros(size, dtype=torch.uint8, device=device), dist.get_rank()
    one, other = pair
    wire = wire_of(device)
    buffer = torch.empty_like(data, device=wire)

    def send(to: int) -> None:
        dist.send(data.to(wire), to)

    def receive(sender: int) -> None:
        dist.recv(buffer, sender)
        buffer.to(device)
        if device.type == "cuda":  # or the time would be that of asking for it
            torch.cuda.synchronize(device)

    def turn() -> None:
        if rank == one:
            send(other)
            receive(other)
        elif rank == other:
            receive(one)
            send(one)

    return _median_s(turn) / 2


def wire_of(memory: torch.device, group: dist.ProcessGroup | None = None) -> torch.device:
    """Where tensors lie while they travel: gloo carries what is in the host's memory."""
    return torch.device("cpu") if dist.get_backend(group) == "gloo" else memory


def _median_s(work: Callable[[], object], times: int = _LINK_TRIES) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def loading_s(load: Callable[[int], Tensor], batches: int) -> float:
    """Seconds of loading a whole batch in this process, while all others do."""
    if not batches:
        return 0.0
    times, steps = min(_LINK_TRIES, batches), iter(range(batches))
    return _median_s(lambda: load(next(steps)), times)


def kind_of(device: torch.device) -> str:
    """Name of a type of device: those of one name are taken to be alike."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


@cache
def _processor() -> str:
    """Its model where the system says it (Linux), else its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = [
        line.partition(":")[2].strip() for line in lines if line.startswith("model name")
    ]
    return named[0] if named else platform.machine()
