"""Curves of trainings over seconds, and when one is as good as another ends."""

from collections.abc import Mapping, Sequence
from itertools import permutations

from kdlab.events.blockwise import BlocksChosen
from kdlab.events.log import select
from kdlab.events.runs import MemberStarted
from kdlab.events.training import EpochDone
from kdlab.papers.ec_dnn.metrics import Point, time_to
from kdlab.report.chart import Points
from kdlab.run.handle.run import Run


def curves_of(run: Run, variant: str | None) -> dict[str, list[Points]]:
    """Top-1 on validation over seconds, with all that belongs to a training, of each seed."""
    curves: dict[str, list[tuple[float, float]]] = {}
    began: dict[str, float] = {}
    kinds = (MemberStarted.KIND, EpochDone.KIND, BlocksChosen.KIND)
    for event in select(run.folder.events, *kinds):
        member = event.member or ""
        if isinstance(event, MemberStarted):
            began.setdefault(member, event.time)
        elif isinstance(event, BlocksChosen):  # until now there was no student yet
            curves.pop(member, None)
        elif not isinstance(event, EpochDone) or member not in began:
            continue  # a teacher's
        elif event.validation_top1 is not None:
            point = event.time - began[member], event.validation_top1
            curves.setdefault(member, []).append(point)
    found: dict[str, list[Points]] = {}
    for member in sorted(curves, key=lambda name: int(name.rpartition("seed")[2])):
        name = variant or member.split("/")[0]
        found.setdefault(name, []).append(curves[member])
    return found


def shares_of_time(
    seen: Mapping[str, Sequence[Points]],
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """`time/A-B`: share of B's time after which A is as good as B ends, of each seed.

    Args:
        seen: (seconds, top-1 in percent) of each seed, by source.

    Returns:
        The shares, and why there are none where A does not get there with a seed.
    """
    courses = {
        name: [[Point(at, 100 - top1) for at, top1 in curve] for curve in of_seeds]
        for name, of_seeds in seen.items()
    }
    found, undefined = dict[str, list[float]](), dict[str, str]()
    for one, other in permutations(courses, 2):
        if len(courses[one]) != len(courses[other]):
            continue  # of other seeds
        times = [
            (time_to(curve, theirs[-1].error), theirs[-1].seconds)
            for curve, theirs in zip(courses[one], courses[other], strict=True)
        ]
        shares = [None if own is None else own / whole for own, whole in times]
        name, known = f"time/{one}-{other}", [s for s in shares if s is not None]
        if len(known) == len(shares):
            found[name] = known
        else:
            undefined[name] = (
                f"{len(shares) - len(known)} of {len(shares)} seeds do not get there"
            )
    return found, undefined
