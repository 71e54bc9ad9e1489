"""Ranks of one member: how a run starts them, and what it tells them."""

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


def start_here(module: str, config: object, log: Path, pulse: Path) -> Child:
    """Ranks of a group talk over loopback, whatever this machine's name resolves to."""
    return Child(module, config, log, pulse, environment={"GLOO_SOCKET_IFNAME": "lo"})


def start_rank(training: MemberTraining, module: str, name: str, pulse: Path) -> RankChild:
    """A process of a member that runs `module`, where the run has its processes started."""
    config = RankConfig(run=str(training.run.path), member=training.member.name, name=name)
    start = start_here if training.hosts is None else training.hosts.start
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
    """The ranks of one member, each a process that runs `module`; `run()` it.

    Args:
        machine: how many there are to be, and what happens when one is lost.
        training: whose ranks they are.
        module: with a `RankProcess` as its main.
        pool: that teaches them; None is no pool.
        hang_s: a rank without a sign of life for so long is killed and replaced.
        wanted: how many somebody asked for since; None if nobody did.
    """
    hosts, folder = training.hosts, training.folder
    rendezvous = folder / "group"
    rendezvous.mkdir(parents=True, exist_ok=True)
    for old in rendezvous.glob("generation-*"):  # of a session before this one
        old.unlink()

    def order(generation: StartGeneration) -> GenerationOrder:
        meeting = f"file://{rendezvous / f'generation-{generation.generation}'}"
        first = group.supervisor.children[generation.ranks[0]]
        if hosts is not None and isinstance(first, HostedRank):
            meeting = hosts.rendezvous(first)
        return GenerationOrder(
            generation=generation.generation,
            fence=checkpoint.raise_fence(folder / "checkpoints"),
            world=len(generation.ranks),
            meet_at=meeting,
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
