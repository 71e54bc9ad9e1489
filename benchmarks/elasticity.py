"""Teachers that come and go by the demand of a student.

A pool that has none, real teachers and a reader, while the student changes its pace.
"""

import time
from collections.abc import Iterator

import psutil

from benchmarks.faults import endless, ready_times, take
from benchmarks.harness import until
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, samples_of
from kdlab.cluster.pool import RunningPool
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.served import Served
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.report.figures import EmitLine, Figure, at, figure
from kdlab.soft_labels.source import Batch

_MOST = 4
_IDLE_S = 5.0
_SLOW_S = 15.0  # so long the student is the bottleneck
_SLOW = 0.25  # of what one teacher could give it


def elastic(repeats: int, say: EmitLine) -> list[Figure]:
    """Measure seconds until teachers are there and gone, and count those not needed."""
    measurements = [_grown_and_gone(say) for _ in range(repeats)]
    return at(
        "elastic",
        figure("one_to_four_s", [m["four"] for m in measurements], "s"),
        figure("load_s", [m["load"] for m in measurements], "s"),
        # 10 s for all but loading: noticing that the student starves, asking, being leased.
        figure("four_beyond_load_s", [m["four"] - m["load"] for m in measurements], "s"),
        figure("added_for_slow_student", [m["added"] for m in measurements], "teachers"),
        figure("to_none_beyond_idle_s", [m["none"] - _IDLE_S for m in measurements], "s"),
    )


def _grown_and_gone(say: EmitLine) -> dict[str, float]:
    case = ImageCase(32, 32, 1)
    samples = samples_of(case)
    with Scene(samples) as scene:
        pool = scene.local(
            CifarResNet(depth=20), teachers=0, least=0, most=_MOST, idle_s=_IDLE_S
        )
        journal = pool.folder / "coordinator.jsonl"
        source = scene.served("elastic", Served(lt=64, ut=512), rate=100.0)
        batches = endless(source)
        next(batches)
        ((_, ready_at),) = ready_times(journal)
        started = psutil.Process(pool.machines.children[0].pid).create_time()
        load = ready_at - (started - time.time() + time.monotonic())
        _at_pace(batches, case.batch / (_SLOW * _rate_of_one(pool)))
        added = len(pool.machines.children) - 1
        quick = time.monotonic()
        until(lambda: len(ready_times(journal)) >= _MOST, lambda: take(batches, 5))
        four = max(t for _, t in ready_times(journal)[:_MOST]) - quick
        source.close()
        begin = time.monotonic()
        until(lambda: not any(child.alive() for child in pool.machines.children))
        none = time.monotonic() - begin
    say(
        f"elastic: a teacher loads in {load:.1f} s; four after {four:.1f} s, none "
        f"{none:.1f} s after the student's end; {added} for a slow student"
    )
    return {"load": load, "added": added, "four": four, "none": none}


def _rate_of_one(pool: RunningPool) -> float:
    (teacher,) = status_of(pool.address, pool.tls).ready
    return teacher.t_t


def _at_pace(batches: Iterator[Batch], step_s: float) -> None:
    """Train for a while, with `step_s` seconds for each step."""
    end = time.monotonic() + _SLOW_S
    while time.monotonic() < end:
        next(batches)
        time.sleep(step_s)  # its step
