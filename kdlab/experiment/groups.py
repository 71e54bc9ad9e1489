"""Start the ranks of one member and give them their orders."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kdlab.cluster.group import StudentGroup
from kdlab.cluster.hosted_ranks import HostedRank
from kdlab.experiment.method import MemberTraining
from kdlab.papers.edl_dist.generations import Generations, StartGeneration
from kdlab.soft_labels.source import PoolAddress, TeacherPool
from kdlab.supervision.children import Child, RankChild
from kdlab.supervision.rank_messages import GenerationOrder, RankConfig
from kdlab.train import checkpoint


def start_local_rank(module: str, config: object, log: Path, pulse: Path) -> Child:
    """Start a rank on this machine; Gloo uses loopback, whatever the host name resolves to."""
    return Child(module, config, log, pulse, environment={"GLOO_SOCKET_IFNAME": "lo"})


def start_rank(training: MemberTraining, module: str, name: str, pulse: Path) -> RankChild:
    """Start a member's process that runs `module`: here, or on the run's Dask workers."""
    config = RankConfig(run=str(training.run.path), member=training.member.name, name=name)
    start = start_local_rank if training.hosts is None else training.hosts.start
    return start(module, config, training.folder / f"{name}.log", pulse)


def rank_group(
    machine: Generations,
    training: MemberTraining,
    *,
    module: str,
    pool: TeacherPool | None,
    hang_s: float,
    wanted: Callable[[], int | None] = lambda: None,
) -> StudentGroup:
    """Create the group of one member's ranks, each a process that runs `module`.

    Args:
        machine: decides the number of ranks, and what follows the loss of one.
        training: the member.
        module: its main runs a `RankProcess`.
        pool: pool of teachers; None is no pool.
        hang_s: seconds without a heartbeat after which a rank is killed and replaced.
        wanted: number of ranks that a user requested since; None without a request.
    """
    hosts, folder = training.hosts, training.folder
    rendezvous = folder / "group"
    rendezvous.mkdir(parents=True, exist_ok=True)
    for old in rendezvous.glob("generation-*"):  # of an earlier session
        old.unlink()

    def order(generation: StartGeneration) -> GenerationOrder:
        url = f"file://{rendezvous / f'generation-{generation.generation}'}"
        first = group.supervisor.children[generation.ranks[0]]
        if hosts is not None and isinstance(first, HostedRank):
            url = hosts.rendezvous(first)
        return GenerationOrder(
            generation=generation.generation,
            fence=checkpoint.raise_fence(folder / "checkpoints"),
            world=len(generation.ranks),
            meet_at=url,
            secret=secrets.token_hex(32),
            from_step=checkpoint.newest_step(folder / "checkpoints"),
            pool=PoolAddress.from_pool(pool),
        )

    group = StudentGroup(
        machine,
        start=partial(start_rank, training, module),
        order=order,
        folder=rendezvous,
        hang_s=hang_s,
        report=training.emit,
        stop=training.setup.stop,
        wanted=wanted,
    )
    return group
