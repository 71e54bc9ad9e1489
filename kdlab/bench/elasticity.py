"""Teachers that come and go: by the demand of a student, and by force.

`elastic`: a pool that has none, real teachers and a reader, while the student changes its pace.
`storm`: a run of two ranks with emulated teachers; every 15 s a teacher or a rank is killed.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import psutil

from kdlab.bench.apart import runs_apart
from kdlab.bench.faults import endless, lineage_of, ready_times, take
from kdlab.bench.scene import Scene
from kdlab.bench.students import ImageCase, samples_of
from kdlab.bench.waiting import until
from kdlab.cluster.local_pool import RunningLocalPool
from kdlab.cluster.pool import status_of
from kdlab.cluster.served import Served
from kdlab.errors import RunFailed
from kdlab.events.log import select
from kdlab.events.ranks import GenerationBegun
from kdlab.events.training import StepLogged
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.report.figures import Figure, Say, at, figure
from kdlab.run import Run, load
from kdlab.run.reach import program_of

_MOST = 4
_IDLE_S = 5.0
_SLOW_S = 15.0  # so long the student is the bottleneck
_SLOW = 0.25  # of what one teacher could give it
_STORM_S = 600.0
_CALM_S = 120.0
_EVERY_S = 15.0
_HOST = "kdlab.cluster.teachers.emulated_teachers"


def elastic(repeats: int, say: Say) -> list[Figure]:
    """Seconds until teachers are there and gone; how many came that were not needed."""
    found = [_grown_and_gone(say) for _ in range(repeats)]
    return at(
        "elastic",
        figure("one_to_four_s", [f["four"] for f in found], "s"),
        figure("load_s", [f["load"] for f in found], "s"),
        # 10 s for what is no loading: seeing that it starves, asking, being leased.
        figure("four_beyond_load_s", [f["four"] - f["load"] for f in found], "s", "<= 10"),
        figure("added_for_slow_student", [f["added"] for f in found], "teachers", "<= 0"),
        figure("to_none_beyond_idle_s", [f["none"] - _IDLE_S for f in found], "s", "<= 10"),
    )


def _grown_and_gone(say: Say) -> dict[str, float]:
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
        started = psutil.Process(pool.teachers[0].pid).create_time()
        load = ready_at - (started - time.time() + time.monotonic())
        _at_pace(batches, case.batch / (_SLOW * _rate_of_one(pool)))
        added = len(pool.teachers) - 1
        quick = time.monotonic()
        until(lambda: len(ready_times(journal)) >= _MOST, lambda: take(batches, 5))
        four = max(t for _, t in ready_times(journal)[:_MOST]) - quick
        source.close()
        begin = time.monotonic()
        until(lambda: not any(child.alive() for child in pool.teachers))
        none = time.monotonic() - begin
    say(
        f"elastic: a teacher loads in {load:.1f} s; four after {four:.1f} s, none "
        f"{none:.1f} s after the student's end; {added} for a slow student"
    )
    return {"load": load, "added": added, "four": four, "none": none}


def _rate_of_one(pool: RunningLocalPool) -> float:
    (teacher,) = status_of(pool.address, pool.tls).ready
    return teacher.t_t


def _at_pace(batches: Iterator[None], step_s: float) -> None:
    """A student that takes so long for a step, for a while."""
    end = time.monotonic() + _SLOW_S
    while time.monotonic() < end:
        next(batches)
        time.sleep(step_s)  # its step


def storm(say: Say) -> list[Figure]:
    """Rate of a run that loses a teacher or a rank every 15 s for ten minutes, over its own."""
    chance = random.Random(0)
    with runs_apart():
        run = _run()
        try:
            until(lambda: _seen(run) > 0, patience_s=300)
            calm = _rate_during(run, _CALM_S, lambda: None)
            kills = {"teacher": 0, "rank": 0}

            def kill() -> None:
                kind = chance.choice(sorted(kills))
                if (_kill_teacher if kind == "teacher" else _kill_rank)(run):
                    kills[kind] += 1

            stormy = _rate_during(run, _STORM_S, kill)
            say(f"storm: {calm:.0f} samples/s, {stormy:.0f} in the storm; killed: {kills}")
        finally:
            run.stop()
            run.wait(timeout_s=120)
            run.kill()
        lineage = lineage_of(run)
    return at(
        "storm",
        figure("over_calm", stormy / calm, "ratio", ">= 0.9"),
        figure(
            "kills", sum(kills.values()), "kills", f">= {int(0.9 * _STORM_S / _EVERY_S)}"
        ),
        figure("samples_lost", lineage.lost, "samples", "<= 0"),
        figure("samples_repeated", lineage.repeated, "samples", "<= 0"),
    )


def _run() -> Run:
    return load(
        "smoke/served",
        "aggregation.type=train/aggregation/all_reduce",
        "teacher_pool={type: cluster/emulated_pool, teachers: 8, t_t: 4000}",
        "student={type: models/cifar_resnet, depth: 20}",
        "train.epochs=1000000",
        "train.schedule=constant",
        "train.evaluate_every=1000000",
        "train.checkpoint_every_steps=20",
        "tracking.enabled=false",
    ).start(lambda line: None)


def _seen(run: Run) -> int:
    """Samples that its weights have learned from."""
    *_, last = (0, *(e.samples_seen for e in select(run.folder.events, StepLogged)))
    return last


def _rate_during(run: Run, seconds: float, trouble: Callable[[], None]) -> float:
    """Samples/s that stay; work that was rolled back does not count."""
    before, begin = _seen(run), time.monotonic()
    due = begin + _EVERY_S
    while (now := time.monotonic()) < begin + seconds:
        if run.state != "running":
            raise RunFailed(f"The run is {run.state}; see {run.path}.")
        if now >= due:
            trouble()
            due += _EVERY_S
        time.sleep(0.2)  # between looks
    return (_seen(run) - before) / (time.monotonic() - begin)


def _kill_teacher(run: Run) -> bool:
    """One of the emulated ones vanishes, and another comes."""
    main = psutil.Process(run.status.pid)
    hosts = [c for c in main.children(recursive=True) if program_of(c.cmdline()) == _HOST]
    for host in hosts:
        host.send_signal(signal.SIGUSR1)
    return bool(hosts)


def _kill_rank(run: Run) -> bool:
    *_, generation = select(run.folder.events, GenerationBegun)
    pids = [pid for pid in generation.pids().values() if psutil.pid_exists(pid)]
    for pid in pids[-1:]:
        os.kill(pid, signal.SIGKILL)
    return bool(pids)
