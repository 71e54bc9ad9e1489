"""Curves of trainings over seconds, and the time until one is as good as another at its end."""

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
    """Return top-1 on validation over seconds since a training started, of each seed."""
    curves: dict[str, list[tuple[float, float]]] = {}
    began: dict[str, float] = {}
    kinds = (MemberStarted.KIND, EpochDone.KIND, BlocksChosen.KIND)
    for event in select(run.folder.events, *kinds):
        member = event.member or ""
        if isinstance(event, MemberStarted):
            began.setdefault(member, event.time)
        elif isinstance(event, BlocksChosen):  # the student starts only now
            curves.pop(member, None)
        elif not isinstance(event, EpochDone) or member not in began:
            continue  # a teacher's
        elif event.validation_top1 is not None:
            point = event.time - began[member], event.validation_top1
            curves.setdefault(member, []).append(point)
    by_name: dict[str, list[Points]] = {}
    for member in sorted(curves, key=lambda name: int(name.rpartition("seed")[2])):
        name = variant or member.split("/")[0]
        by_name.setdefault(name, []).append(curves[member])
    return by_name


def shares_of_time(
    seen: Mapping[str, Sequence[Points]],
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return `time/A-B`: share of B's time until A is as good as B at its end, of each seed.

    Args:
        seen: (seconds, top-1 in percent) of each seed, by source.

    Returns:
        The shares, and the reasons for those that are undefined: A never gets as good with a seed.
    """
    courses = {
        name: [[Point(at, 100 - top1) for at, top1 in curve] for curve in of_seeds]
        for name, of_seeds in seen.items()
    }
    shares, undefined = dict[str, list[float]](), dict[str, str]()
    for source, rival in permutations(courses, 2):
        if len(courses[source]) != len(courses[rival]):
            continue  # their seeds differ
        times = [
            (time_to(curve, theirs[-1].error), theirs[-1].seconds)
            for curve, theirs in zip(courses[source], courses[rival], strict=True)
        ]
        ratios = [None if took is None else took / total for took, total in times]
        name, known = f"time/{source}-{rival}", [r for r in ratios if r is not None]
        if len(known) == len(ratios):
            shares[name] = known
        else:
            undefined[name] = (
                f"{len(ratios) - len(known)} of {len(ratios)} seeds do not get there"
            )
    return shares, undefined
