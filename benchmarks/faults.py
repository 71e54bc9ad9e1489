"""Costs of faults on real processes: seconds until training continues, and samples lost.

Times are of the machine's monotonic clock, which all its processes share: the benchmark reads
it when it sends a signal, the reader when it reacts (its recorded events).
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.harness import check_goes_on, going, runs_apart, until
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, samples_of
from kdlab.cluster.served import Served, ServedSource
from kdlab.data.samples import PlannedSamples
from kdlab.errors import ClusterError, RunFailed
from kdlab.events.log import LineReader, select
from kdlab.events.ranks import GenerationStarted, GroupRecovered
from kdlab.events.teachers import ChaosCaused
from kdlab.events.training import StepLogged
from kdlab.models.patch_net import PatchNet
from kdlab.papers.edl_dist.reader_instructions import EmitEvent, Send
from kdlab.report.figures import EmitLine, Figure, at, figure
from kdlab.run import Run, load
from kdlab.soft_labels.source import Batch
from kdlab.train import checkpoint
from kdlab.train.lineage import LineageCounts
from kdlab.train.student_job import StudentFacts

_TTL_S = 6.0
_REPEATS = 3
_CHAOS_EVENTS = 200


def measure(say: EmitLine) -> list[Figure]:
    return [*resends(say), failover(say), memory_growth(say), *chaos(say)]


# Teachers


def resends(say: EmitLine) -> list[Figure]:
    samples = samples_of(ImageCase(8, 32, 1))
    each = [_one_of_each(samples) for _ in range(_REPEATS)]
    costs = {name: [run[name] for run in each] for name in each[0]}
    say(f"faults: {', '.join(f'{n} {median(values):.2f}' for n, values in costs.items())}")
    return [
        figure(name, values, "parts" if name == "resend_s/sigterm" else "s")
        for name, values in costs.items()
    ]


def _one_of_each(samples: PlannedSamples) -> dict[str, float]:
    """Kill, stop, withdraw and add a teacher of a student under way."""
    with Scene(samples) as scene:
        pool = scene.local(PatchNet(patch=2, depth=4), teachers=4, ttl_s=_TTL_S)
        journal = pool.folder / "coordinator.jsonl"
        until(lambda: len(ready_times(journal)) == 4)
        source = scene.served("faults", Served(lt=256, ut=1024, record=True))
        batches = endless(source)
        costs: dict[str, float] = {}
        for name, number in (("sigkill", signal.SIGKILL), ("sigstop", signal.SIGSTOP)):
            child = pool.machines.children[len(costs)]
            take(batches, 50)
            at = time.monotonic()
            os.kill(child.pid, number)
            costs[f"resend_s/{name}"] = _resent_after(source, batches, at)
            if number == signal.SIGSTOP:
                child.process.kill()
        # A hedge came first: other parts of the stopped teacher are sent again when it is lost.
        until(lambda: _losses(source) >= len(costs), lambda: take(batches, 5))
        time.sleep(0.2)  # figures follow with the reader's next look
        before = source.figures()["resends"]
        pool.machines.children[2].process.terminate()
        until(lambda: not pool.machines.children[2].alive(), lambda: take(batches, 5))
        costs["resend_s/sigterm"] = source.figures()["resends"] - before
        pool.machines.add()
        costs["join_to_used_s"] = _used_after(journal, source, batches)
        return costs


def endless(source: ServedSource) -> Iterator[Batch]:
    return chain.from_iterable(source.epoch(epoch, ()) for epoch in count())


def take(batches: Iterator[Batch], number: int) -> None:
    for _ in range(number):
        next(batches)


def _resent_after(source: ServedSource, batches: Iterator[Batch], at: float) -> float:
    """Seconds from a fault to the first part sent again or hedged because of it."""
    before = source.figures()["resends"] + source.figures()["hedges"]

    def resent() -> bool:
        figures = source.figures()
        return figures["resends"] + figures["hedges"] > before

    until(resent, lambda: take(batches, 5))
    for reaction in _recorded(source):
        # A loss that leads to sends at once, or a look that sends (a hedge).
        again = bool(reaction.sent_to) if reaction.on == "on_tick" else reaction.loses
        if reaction.time >= at and again:
            return reaction.time - at
    raise RuntimeError("the reader's record shows no part that was sent again")


def _losses(source: ServedSource) -> int:
    return sum(reaction.loses for reaction in _recorded(source))


def _used_after(journal: Path, source: ServedSource, batches: Iterator[Batch]) -> float:
    """Seconds from a teacher's readiness to the first part that is sent to it."""
    before = ready_times(journal)
    until(lambda: len(ready_times(journal)) > len(before), lambda: take(batches, 5))
    address, ready_at = ready_times(journal)[-1]

    def sends() -> list[float]:
        return [r.time for r in _recorded(source) if address in r.sent_to]

    until(lambda: bool(sends()), lambda: take(batches, 20))
    return sends()[0] - ready_at


def ready_times(journal: Path) -> list[tuple[str, float]]:
    entries = LineReader(journal)()
    return [(e["args"][0], e["args"][2]) for e in entries if e.get("on") == "on_ready"]


class _Recorded(NamedTuple):
    """Reaction of the reader to an event: the teachers it sent to, and whether it lost one."""

    on: str
    time: float
    sent_to: list[str]
    loses: bool


def _recorded(source: ServedSource) -> list[_Recorded]:
    records = []
    entries = LineReader(source.log.with_suffix(".jsonl"))()
    for entry in (line for line in entries if "on" in line):
        instructions = entry["told"] or []
        events = [i["event"]["event"] for i in instructions if i["kind"] == EmitEvent.KIND]
        # Every event's time is its last argument, or the keyword.
        at = entry["kwargs"].get("time", entry["args"][-1] if entry["args"] else -1.0)
        sent_to = [i["teacher"] for i in instructions if i["kind"] == Send.KIND]
        records.append(_Recorded(entry["on"], float(at), sent_to, "teacher_lost" in events))
    return records


# Memory


def memory_growth(say: EmitLine) -> Figure:
    """Growth of trainer and reader together, over 50,000 batches of emulated teachers."""
    samples = samples_of(ImageCase(8, 16, 1, batches=500))
    with Scene(samples) as scene:
        scene.emulated(teachers=4, t_t=1e6, jitter=0.0)
        source = scene.served("growth", Served(lt=128, ut=512))
        batches = endless(source)
        processes = [psutil.Process(), psutil.Process(source.reader.pid)]
        take(batches, 5_000)  # pools and caches fill
        before = sum(p.memory_info().rss for p in processes)
        take(batches, 50_000)
        grown = (sum(p.memory_info().rss for p in processes) - before) / 1e6
    say(f"memory over 50,000 batches: {grown:+.1f} MB")
    return figure("rss_growth_mb/50000_batches", grown, "MB")


# Ranks


@contextmanager
def _run(*overrides: str) -> Iterator[Run]:
    """A small run of two ranks in a folder of its own; ended whatever happens."""
    experiment = load(
        "smoke/served",
        "aggregation.type=train/aggregation/all_reduce",
        "student={type: models/patch_net, patch: 2}",
        "train.epochs=1000000",
        "train.schedule=constant",
        "train.evaluate_every=1000000",
        "train.checkpoint_every_steps=200",
        "train.threads=1",
        "tracking.enabled=false",
        *overrides,
    )
    with runs_apart(), going(experiment) as run:
        yield run


def failover(say: EmitLine) -> Figure:
    with _run() as run:
        seconds = [_failover(run, repeat) for repeat in range(_REPEATS)]
    say(f"failover of a rank: {', '.join(f'{s:.2f} s' for s in seconds)}")
    return figure("failover_s/student_rank", seconds, "s")


def _failover(run: Run, before: int) -> float:
    """Kill the master and the other rank in turn; return the seconds that the group logged."""

    def again() -> list[float]:
        return [e.seconds for e in select(run.folder.events, GroupRecovered)]

    until(lambda: _trains(run, before + 1))
    until(lambda: _standby_is_ready(run, before))
    *_, generation = select(run.folder.events, GenerationStarted)
    os.kill(list(generation.pids().values())[before % 2], signal.SIGKILL)
    until(lambda: len(again()) > before)
    return again()[-1]


def _trains(run: Run, generation: int) -> bool:
    events = list(run.events())
    begun = [i for i, e in enumerate(events) if isinstance(e, GenerationStarted)]
    if len(begun) < generation:
        return False
    return any(isinstance(e, StepLogged) for e in events[begun[-1] :])


def _standby_is_ready(run: Run, used: int) -> bool:
    """Return True with two ranks, a standby, and one more process for each that was used up."""
    pulses = list(run.path.glob("members/*/*/group/pulse/*"))
    return len(pulses) >= 3 + used


def lineage_of(run: Run) -> LineageCounts:
    """Return which samples the newest checkpoint of the only student has learned from."""
    folders = list(run.path.glob("members/*/*/checkpoints"))
    if not folders:
        raise RunFailed(f"Run {run.id} made no checkpoint: the machine is too busy for it.")
    (folder,) = folders
    saved = checkpoint.load_newest(folder, str(run.folder.origin().spec_hash), StudentFacts)
    assert saved is not None
    return saved.facts.lineage


def chaos(say: EmitLine, events: int = _CHAOS_EVENTS) -> list[Figure]:
    """200 kills, stops, cuts, withdrawals and joins in one run, ranks among them."""
    weights = (
        # A rank is hit every eleven seconds: a failover takes four, on a busy machine more.
        "{kill_teacher: 5, stop_teacher: 3, slow_teacher: 3, partition_teacher: 3, "
        "leave_teacher: 3, join_teacher: 2, kill_rank: 1, stop_rank: 1, leave_rank: 1, "
        # More than are counted: some find nobody to hit, between two generations.
        f"events: {3 * events}, every_s: 1.5, lasts_s: 2.0, seed: 11}}"
    )
    with _run(
        f"chaos={weights}",
        "teacher_pool.chaos=true",
        "teacher_pool.teachers=3",
        "train.checkpoint_every_steps=20",
    ) as run:

        def caused() -> int:
            check_goes_on(run)
            return len(list(select(run.folder.events, ChaosCaused)))

        with suppress(ClusterError):  # so many as there were until then
            until(lambda: caused() >= events, patience_s=1200.0, tick_s=1.0)
        number = caused()
        say(f"chaos: {number} events")
        run.stop()
        run.wait(timeout_s=120)
        lineage = lineage_of(run)
    return at(
        f"chaos{events}",
        figure("chaos_events", number, "events"),
        figure("samples_lost", lineage.lost, "samples"),
        figure("samples_repeated", lineage.repeated, "samples"),
    )
