"""Pools of unlike teachers, near and far, that become slow, hang and are lost, as machines do.

What a student trains on is set beside what it could have had: its demand or, where that is less,
the rates of all that were well. From one trace: with real processes, and on a simulated clock.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, count
from statistics import mean
from typing import Any

from benchmarks.at_scale import WARM_UP_S, Setting, simulated, watched
from benchmarks.harness import until
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, samples_of
from benchmarks.unlike import held_back
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.served import Served, ServedSource
from kdlab.codec import part_of
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import Figure, Say, at, figure
from kdlab.simulate.edl_dist import EdlDist
from kdlab.simulate.mishaps import Behaviour, Move
from kdlab.soft_labels.source import Batch

_MEASURE_S, _AFTER_S = 45.0, 15.0  # at least, and after the last that happens
_SHARE, _PERIOD_S = 0.3, 0.05  # of the time, of the teacher that is held back
_ENDLESS = 1e9  # samples/s that nobody gives
_WANTED = 0.85  # of what both give together
_IMAGES = ImageCase(32, 64, 1)
_LOST = tuple(
    move
    for at_s in (20.0, 40.0)
    for move in (Move(at_s=at_s, lose=1, which="quickest"), Move(at_s=at_s + 5, join=1))
)
_QUICK, _HUNDRED = ((3, 2000.0), (70, 20.0)), ((100, 38.0),)


def _how(**more: Any) -> Behaviour:
    return Behaviour(jitter=0.1, request_s=3e-4, **more)


_FEW, _LOSES = _how(least_batch=8), _how(moves=_LOST)
_SLOW, _FOUR_SLOW = (_how(moves=(Move(at_s=20, slow=number),)) for number in (1, 4))
SETTINGS = (
    Setting("quick_lost_strict", _QUICK, 6600.0, 1024, "strict", _LOSES),
    Setting("quick_lost_any", _QUICK, 6600.0, 1024, "any", _LOSES),
    Setting("4x31_100x2_least_8", ((4, 31.0), (100, 2.0)), 300.0, 16, "strict", _FEW),
    Setting("10x110_60x4.5_least_8", ((10, 110.0), (60, 4.5)), 1290.0, 64, "strict", _FEW),
    Setting("1_of_66_slow", _HUNDRED, 2500.0, 256, "strict", _SLOW),
    Setting("4_of_66_slow", _HUNDRED, 2500.0, 256, "strict", _FOUR_SLOW),
    Setting("400ms_60x100", ((60, 100.0),), 2000.0, 256, "any", _how(latency_s=0.4)),
    Setting("500ms_200x100", ((200, 100.0),), 2000.0, 256, "any", _how(latency_s=0.5)),
    Setting("91x2_least_8", ((91, 2.0),), 160.0, 8, "strict", _FEW),
)


def measure(say: Say) -> list[Figure]:
    figures = [
        f for setting in (*SETTINGS, from_card("unlike")) for f in both(setting, say)
    ]
    return [*figures, real_teachers(say)]


def from_card(name: str) -> Setting:
    """The pool and the trace of a simulation."""
    spec = construct(EdlDist, compose_card(f"simulations/edl_dist/{name}"))
    (case,) = spec.cases
    kinds = [(case.teachers, case.teacher), *((f.count, f.teacher) for f in case.more)]
    return Setting(
        f"card_{name}",
        tuple((number, kind.samples_per_second) for number, kind in kinds),
        case.student.samples_per_second,
        spec.batch,
        case.order or spec.order,
        part_of(spec, Behaviour),
    )


def both(setting: Setting, say: Say) -> list[Figure]:
    """Simulated, and with real processes."""
    outcome = simulated(setting)
    alone = outcome.samples_per_second / outcome.to_be_had
    last = max((move.at_s for move in setting.how.moves), default=0.0)
    found = watched(setting, max(_MEASURE_S, last + _AFTER_S - WARM_UP_S))
    say(f"{found.line}; simulated {alone:.3f}")
    return at(
        setting.name,
        figure("scale/unlike", found.share, "ratio"),
        figure("scale/unlike_simulated", alone, "ratio"),
        figure("scale/unlike_lost_or_repeated", found.lost, "batches"),
    )


def real_teachers(say: Say) -> Figure:
    """Two that compute on a thread each; the kernel lets one run for a part of the time."""
    with Scene(samples_of(_IMAGES)) as scene:
        pool = scene.local(PatchNet(patch=4, depth=24, width=128), teachers=2, threads=1)

        def said() -> list[float]:
            return sorted(t.t_t for t in status_of(pool.address, pool.tls).teachers)

        until(lambda: len(said()) == 2 and said()[0] > 0)
        with held_back(lambda: pool.machines.children[1].pid, _SHARE, _PERIOD_S):
            with closing(scene.served("greedy", Served(), _ENDLESS)) as source:
                _trained(
                    _all(source), _ENDLESS, WARM_UP_S, said
                )  # then they know their rates
            slow, quick = said()
            demand = _WANTED * (slow + quick)
            source = scene.served("student", Served(order="strict"), demand)
            batches = _all(source)
            _trained(batches, demand, WARM_UP_S, said)
            rate, could = _trained(batches, demand, _MEASURE_S, said)
        found = source.figures()
    say(
        f"real teachers of {quick:.0f} and {slow:.0f} samples/s: {rate / could:.3f} of "
        f"{could:.0f} samples/s; starved {found['starved_s']:.1f} s, {found['hedges']:.0f} parts "
        f"hedged, {found['resends']:.0f} sent again"
    )
    return figure("scale/unlike/real_teachers", rate / could, "ratio")


def _all(source: ServedSource) -> Iterator[Batch]:
    return chain.from_iterable(source.epoch(epoch, ()) for epoch in count())


def _trained(
    batches: Iterator[Batch], demand: float, seconds: float, said: Callable[[], list[float]]
) -> tuple[float, float]:
    """Samples/s of a student that trains by waiting, and what it could have had meanwhile."""
    begin = due = time.monotonic()
    trained, could = 0, [min(demand, sum(said()))]
    for batch in batches:
        if time.monotonic() > begin + len(could):  # once a second
            could.append(min(demand, sum(said())))
        now = time.monotonic()
        if now > begin + seconds:
            break
        due = max(due + len(batch.ids) / demand, now)
        time.sleep(due - now)  # the step itself
        trained += len(batch.ids)
    return trained / (time.monotonic() - begin), mean(could)
