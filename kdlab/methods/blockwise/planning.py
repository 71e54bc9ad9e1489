"""The profile of a group of devices, measured by all of them at the same time.

Each rank measures every block while the others do, as in training: a busy neighbour slows a core,
and memory is shared. Ranks on the same type of device are one type and give one median. Each type
has its own link, the slowest of its devices' ways to others.

A profile can be kept and used again. It names its machines and its blocks; one of other machines
or blocks would make the plan a guess, so it is refused.
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
    """Identity of a profile: its machines, blocks and batch."""

    machine: str  # processors, devices, PyTorch; of all ranks where these differ
    model: str  # both networks, their cuts, and the shape of an image
    batch: int  # rows


def joint_identity(identity: Identity, machines: Sequence[str]) -> Identity:
    """Return the identity of a profile that ranks on all these machines measure."""
    if len(set(machines)) == 1:
        return identity
    joined = hashlib.sha256(" ".join(sorted(machines)).encode()).hexdigest()[:16]
    return replace(identity, machine=joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptProfile(Profile):
    """A `Profile` on disk, without memory, which every session reads anew."""

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


def _numbers(nested: object) -> Iterator[float]:
    """Yield all numbers in dicts, keys included, lists and tuples."""
    if isinstance(nested, float | int):
        yield nested
    elif isinstance(nested, dict | list | tuple):
        for part in (*nested, *nested.values()) if isinstance(nested, dict) else nested:
            yield from _numbers(part)


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A member's plan.json; it holds for these devices in this order alone."""

    programme: ExecutionPlan
    table: str
    ideal_s: dict[str, Amount]  # seconds of a step, by part
    devices: tuple[str, ...]  # their types

    def __post_init__(self) -> None:
        stages = [s for plan in self.programme.plans for s in plan.stages]
        used = {device for stage in stages for device in stage.devices}
        if not used or not used <= {*range(len(self.devices))}:
            raise ValueError("its plan is not for its devices")


def write_profile(profile: Profile, identity: Identity, path: Path) -> None:
    """Write a profile as JSON, for people and for `method.profile`."""
    marked = {"memory_bytes": None, "identity": to_builtins(identity)}
    write_json(path, to_builtins(profile) | marked)


def read_profile(path: Path, identity: Identity, *, any_machine: bool = False) -> Profile:
    """Read a profile that `write_profile` wrote.

    Raises:
        BadInput: there is no such file, it is no profile, or its machine, model or batch differ.
    """
    cure = "Set method.profile to null to measure one; every run keeps its own as profile.json."
    try:
        stored = read_as(_KeptProfile, path, cure)
    except MessageError as error:
        raise BadInput(f"There is no profile at {path}: {error}") from error
    for what in ("model", "batch") if any_machine else ("machine", "model", "batch"):
        was, now = getattr(stored.identity, what), getattr(identity, what)
        if was != now:
            raise BadInput(
                f"{path} was measured on another {what} ({was}, here {now}), so its times do "
                "not hold for this run. Set method.profile to null to measure again."
            )
    return part_of(replace(stored, devices=tuple(stored.devices)), Profile)


def gathered(blocks: Sequence[Block], device: torch.device, load_s: float) -> Profile:
    """Join the measurements of all ranks of the default group; every rank must call this."""
    measured = kind_of(device), list(blocks), load_s
    everyone = from_all(measured, tuple[str, list[Block], float])
    kinds = [kind for kind, _, _ in everyone]
    types = {
        name: _medians([costs for kind, costs, _ in everyone if kind == name])
        for name in dict.fromkeys(kinds)
    }
    return Profile(
        types=types,
        devices=tuple(kinds),
        links=measured_links(device),
        load_s=median(s for *_, s in everyone),
        # A CPU loads with the cores that compute; one CPU rank makes all count so.
        load_overlap=min(from_all(0.0 if device.type == "cpu" else 1.0, float)),
    )


def in_order_of(kinds: Sequence[str], profile: Profile) -> Profile | None:
    """Return the profile with its devices in this order, or None where they differ."""
    if sorted(kinds) != sorted(profile.devices):
        return None
    return replace(profile, devices=tuple(kinds))


def _medians(measured: Sequence[Sequence[Block]]) -> list[Block]:
    """Return blocks with the median times over the ranks of one type."""

    def median_s(times: Sequence[Mapping[int, float]]) -> dict[int, float]:
        return {rows: median(t[rows] for t in times) for rows in times[0]}

    return [
        replace(
            same[0],
            teacher_s=median_s([b.teacher_s for b in same]),
            student_s=median_s([b.student_s for b in same]),
        )
        for same in zip(*measured, strict=True)
    ]


def measured_links(device: torch.device) -> dict[str, DeviceLink]:
    """Measure the link of each type of device by round trips; all ranks must call this.

    Between two machines where a type is on several. On CPUs the cores that compute copy the
    transfers, so nothing overlaps.
    """
    place = kind_of(device), platform.node()
    kinds, hosts = zip(*from_all(place, tuple[str, str]), strict=True)
    overlaps = from_all(0.0 if device.type == "cpu" else 1.0, float)
    if len(kinds) == 1:
        return {kinds[0]: DeviceLink(overlap=overlaps[0])}
    meet_s = _meeting_s(device)
    links = {}
    for kind in dict.fromkeys(kinds):
        first = kinds.index(kind)
        pair = first, partner_of(first, kinds, hosts)
        small, large = (_there_and_back(size, device, pair) for size in _LINK_BYTES)
        small, large = from_all((small, large), tuple[float, float])[first]
        rate = (_LINK_BYTES[1] - _LINK_BYTES[0]) / max(1e-9, large - small)
        links[kind] = DeviceLink(
            bytes_per_s=rate,
            latency_s=max(0.0, small - _LINK_BYTES[0] / rate),
            overlap=overlaps[first],
            meet_s=meet_s,
        )
    return links


def partner_of(first: int, kinds: Sequence[str], hosts: Sequence[str]) -> int:
    """Return the rank to measure a link with: of the same type, on another machine."""

    def distance(rank: int) -> tuple[bool, bool, int]:
        return kinds[rank] != kinds[first], hosts[rank] == hosts[first], rank

    return min((rank for rank in range(len(kinds)) if rank != first), key=distance)


def _meeting_s(device: torch.device) -> float:
    """Return the seconds of an all-reduce of a few bytes over all ranks."""
    little = torch.zeros(64, device=device)

    def meet() -> None:
        dist.all_reduce(little)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return from_first(_median_s(meet), float)


def _there_and_back(size: int, device: torch.device, pair: tuple[int, int]) -> float:
    """Return the seconds one way between two ranks: half the median of some round trips."""
    data, rank = torch.zeros(size, dtype=torch.uint8, device=device), dist.get_rank()
    wire, (first, second) = wire_of(device), pair
    buffer = torch.empty_like(data, device=wire)

    def send(to: int) -> None:
        dist.send(data.to(wire), to)

    def receive(sender: int) -> None:
        dist.recv(buffer, sender)
        buffer.to(device)
        if device.type == "cuda":  # the copy is asynchronous
            torch.cuda.synchronize(device)

    def turn() -> None:
        if rank == first:
            send(second)
            receive(second)
        elif rank == second:
            receive(first)
            send(first)

    return _median_s(turn) / 2


def wire_of(memory: torch.device, group: dist.ProcessGroup | None = None) -> torch.device:
    """Return the device that tensors are sent from: host memory with gloo."""
    return torch.device("cpu") if dist.get_backend(group) == "gloo" else memory


def _median_s(work: Callable[[], object], times: int = _LINK_TRIES) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def loading_s(load: Callable[[int], Tensor], batches: int) -> float:
    """Return the seconds of loading a batch in this process, while all others load."""
    if not batches:
        return 0.0
    times, steps = min(_LINK_TRIES, batches), iter(range(batches))
    return _median_s(lambda: load(next(steps)), times)


def kind_of(device: torch.device) -> str:
    """Return the name of a type of device; devices of one name count as alike."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


@cache
def _processor() -> str:
    """Return the processor's model where the system names it (Linux), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(models, platform.machine()).strip()
