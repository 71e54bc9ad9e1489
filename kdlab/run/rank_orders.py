"""What the run's process tells the ranks of a student, and how they are started."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdlab.cluster.group import StudentGroup
from kdlab.cluster.hosted_ranks import HostedRank, Hosts
from kdlab.cluster.pool import Pool
from kdlab.cluster.rank_child import RankChild, start_here
from kdlab.errors import BadInput
from kdlab.papers.edl_dist.generations import Generations, StartGeneration
from kdlab.run.folder import RunFolder
from kdlab.train import checkpoint
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.blockwise import Blockwise

_WANTED = "ranks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a group works for, and where.

    Attributes:
        run, member, folder: whose training it is.
        hosts: where its ranks are started; None is this machine.
        report: events for people.
        stop: whether the user asked to stop.
    """

    run: RunFolder
    member: str
    folder: Path
    hosts: Hosts | None
    report: Callable[..., None]
    stop: Callable[[], bool]


def student_group(
    spec: AllReduce, around: Around, *, pool: Pool | None, spec_hash: str
) -> StudentGroup:
    """The group that trains one member of a run by all-reduce; `run()` it."""
    machine = Generations(
        wanted=wanted_ranks(around.run) or spec.ranks,
        least=spec.least,
        replace=spec.replace_lost,
        standby=spec.standby,
    )
    return _group(
        machine,
        around,
        module="kdlab.run.rank",
        shared={"pool": pool_facts(pool), "spec_hash": spec_hash},
        hang_s=spec.hang_s,
        wanted=lambda: wanted_ranks(around.run),
    )


def block_group(method: Blockwise, around: Around, pool: Pool | None) -> StudentGroup:
    """The group that trains one member of a run block by block; `run()` it.

    A plan is for all of its devices: a lost rank is replaced, and nobody trains before.
    `pool` serves the teacher's first blocks, for plans that have them served.
    """
    machine = Generations(
        wanted=method.devices, least=method.devices, replace=True, standby=method.standby
    )
    return _group(
        machine,
        around,
        module="kdlab.run.block_rank",
        shared={"pool": pool_facts(pool)},
        hang_s=method.hang_s,
        wanted=lambda: None,
    )


def _group(
    machine: Generations,
    around: Around,
    *,
    module: str,
    shared: dict[str, Any],
    hang_s: float,
    wanted: Callable[[], int | None],
) -> StudentGroup:
    hosts, folder = around.hosts, around.folder
    rendezvous = folder / "group"
    rendezvous.mkdir(parents=True, exist_ok=True)
    for old in rendezvous.glob("generation-*"):  # of a session before this one
        old.unlink()

    def start(name: str, pulse: Path) -> RankChild:
        config = {"run": str(around.run.path), "member": around.member, "name": name}
        log = folder / f"{name}.log"
        if hosts is not None:
            return hosts.start(module, config, log, pulse)
        return start_here(module, config, log, pulse)

    def order(generation: StartGeneration) -> dict[str, Any]:
        meeting = f"file://{rendezvous / f'generation-{generation.generation}'}"
        first = group.children[generation.ranks[0]]
        if hosts is not None and isinstance(first, HostedRank):
            meeting = hosts.meeting(first)
        return shared | {
            "generation": generation.generation,
            "fence": checkpoint.raise_fence(folder / "checkpoints"),
            "world": len(generation.ranks),
            "meet_at": meeting,
            "from_step": checkpoint.newest_step(folder / "checkpoints"),
        }

    group = StudentGroup(
        machine,
        start=start,
        order=order,
        folder=rendezvous,
        hang_s=hang_s,
        report=around.report,
        stop=around.stop,
        wanted=wanted,
    )
    return group


def pool_facts(pool: Pool | None) -> dict[str, Any] | None:
    """What a rank must know of a pool that somebody else keeps."""
    if pool is None:
        return None
    return {"address": pool.address, "teacher": pool.teacher, "tls": pool.tls}


def wanted_ranks(run: RunFolder) -> int | None:
    """What somebody asked for while the run was going; None if nobody did."""
    path = run.path / _WANTED
    if not path.is_file():
        return None
    return int(json.loads(path.read_text())["ranks"])


def ask_for_ranks(run: RunFolder, spec: dict[str, Any], ranks: int) -> None:
    """Have a group grow or shrink at its next step.

    Raises:
        BadInput: the run has no group, or it cannot have so many ranks.
    """
    from kdlab.config.home import write_json

    aggregation = spec["aggregation"]
    if aggregation["type"] != AllReduce.component:
        raise BadInput(
            f"Run {run.run_id} trains one student in one process (aggregation "
            f"{aggregation['type']}); only train/aggregation/all_reduce has ranks."
        )
    most = (
        2 * aggregation["ranks"]
    )  # every batch holds two samples for each rank of the spec
    if not aggregation["least"] <= ranks <= most:
        raise BadInput(
            f"{ranks} ranks are asked for; this run can have {aggregation['least']} to {most} "
            f"(aggregation.least, and twice aggregation.ranks={aggregation['ranks']})."
        )
    write_json(run.path / _WANTED, {"ranks": ranks})
