"""What the run's process tells the ranks of a student, and how they are started."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kdlab.cluster.children import Child
from kdlab.cluster.group import StudentGroup
from kdlab.cluster.pool import Pool
from kdlab.errors import BadInput
from kdlab.papers.edl_dist.generations import Generations, StartGeneration
from kdlab.run.folder import RunFolder
from kdlab.train import checkpoint
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.blockwise import Blockwise

_WANTED = "ranks.json"


def student_group(
    spec: AllReduce,
    *,
    run: RunFolder,
    member: str,
    folder: Path,
    pool: Pool | None,
    spec_hash: str,
    report: Callable[..., None],
    stop: Callable[[], bool],
) -> StudentGroup:
    """The group that trains one member of a run by all-reduce; `run()` it."""
    machine = Generations(
        wanted=wanted_ranks(run) or spec.ranks,
        least=spec.least,
        replace=spec.replace_lost,
        standby=spec.standby,
    )
    return _group(
        machine,
        module="kdlab.run.rank",
        run=run,
        member=member,
        folder=folder,
        shared={"pool": pool_facts(pool), "spec_hash": spec_hash},
        hang_s=spec.hang_s,
        report=report,
        stop=stop,
        wanted=lambda: wanted_ranks(run),
    )


def block_group(
    method: Blockwise,
    *,
    run: RunFolder,
    member: str,
    folder: Path,
    report: Callable[..., None],
    stop: Callable[[], bool],
) -> StudentGroup:
    """The group that trains one member of a run block by block; `run()` it.

    A plan is for all of its devices: a lost rank is replaced, and nobody trains before.
    """
    machine = Generations(
        wanted=method.devices, least=method.devices, replace=True, standby=method.standby
    )
    return _group(
        machine,
        module="kdlab.run.block_rank",
        run=run,
        member=member,
        folder=folder,
        shared={},
        hang_s=method.hang_s,
        report=report,
        stop=stop,
        wanted=lambda: None,
    )


def _group(
    machine: Generations,
    *,
    module: str,
    run: RunFolder,
    member: str,
    folder: Path,
    shared: dict[str, Any],
    **rest: Any,
) -> StudentGroup:
    rendezvous = folder / "group"
    rendezvous.mkdir(parents=True, exist_ok=True)
    for old in rendezvous.glob("generation-*"):  # of a session before this one
        old.unlink()

    def start(name: str, pulse: Path) -> Child:
        config = {"run": str(run.path), "member": member, "name": name, "pulse": str(pulse)}
        # Ranks of a group talk on this machine: loopback, whatever its name resolves to.
        environment = {"GLOO_SOCKET_IFNAME": "lo"}
        log = folder / f"{name}.log"
        return Child(module, config, log, environment=environment)

    def order(generation: StartGeneration) -> dict[str, Any]:
        meeting = rendezvous / f"generation-{generation.generation}"
        return shared | {
            "generation": generation.generation,
            "world": len(generation.ranks),
            "meet_at": f"file://{meeting}",
            "from_step": checkpoint.newest_step(folder / "checkpoints"),
        }

    return StudentGroup(machine, start=start, order=order, folder=rendezvous, **rest)


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
