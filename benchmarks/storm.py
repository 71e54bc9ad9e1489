"""`kdlab bench storm`: time to 3,000 steps while machines fail, and what becomes of the samples.

A process is killed each 45 s or each 15 s, from the tenth step on. The same student on two ranks,
the same teacher, photos, batches and distance of checkpoints for all:

    kdlab     the ranks train on soft labels of three served teachers; a teacher or a rank is killed
    ranks     the same, and only ranks are killed, as often as in the worst storm
    torchrun  DDP with the teacher in each rank; all begin again from the newest checkpoint
              (`--max-restarts`)
    torchft   two replica groups of one rank each, with the teacher in it; while one is away the
              other trains on its own part of each batch

Clockwork reports such times for 64 GPUs (2026-03): 3,000 steps, a failure each 45 to 75 minutes.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import NamedTuple

import numpy as np
import psutil
from safetensors.torch import save_file

from benchmarks.faults import lineage_of
from benchmarks.harness import (
    check_parts,
    going,
    quiet,
    report,
    runs_apart,
    steps_of,
    until,
)
from benchmarks.storm_peer import FIRST, StormPeer, pid_file, steps_file
from kdlab.errors import BadInput, RunFailed
from kdlab.events.log import select
from kdlab.events.ranks import GenerationStarted
from kdlab.events.teachers import TeacherJoined
from kdlab.events.training import StepLogged
from kdlab.report.figures import EmitLine, Figure, Report, at, figure, over
from kdlab.run import Run, load
from kdlab.train.teacher import TeacherSpec

_CHECKOUT = str(Path(__file__).parents[1])
STEPS = 3000
BATCH = 32  # over both ranks
_EVERY_S = (0.0, 45.0, 15.0)  # between two failures; 0 is none
_CHECKPOINT_STEPS = 50
_PATIENCE_S = 300.0  # to the first steps
_MOST_S = 900.0  # a run that needs longer is ended
_MOST_FAILURES = 200
_CORES = 16  # with so many, all train side by side
_TICK_MS = 5  # of a lighthouse, for steps of some milliseconds; its own default is 100
_JOIN_MS = 1000  # it waits so long for a replica group that lives and is late
_RUN = {
    "compare": ["served"],
    # Every peer can keep its photos decoded in memory; so does kdlab here.
    "data": {
        "use": "data/clothes",
        "kept": "decoded",
        "augment": {"flip": True, "crop_padding": 4},
    },
    "teacher_pool": {"use": "teacher_pools/local", "teachers": 3},  # one to spare
    "aggregation": {"type": "train/aggregation/all_reduce", "batch_norm": "local"},
    "train.batch": BATCH,
    "train.epochs": 10**6,
    "train.schedule": "constant",
    "train.warmup_epochs": 0,
    "train.evaluate_every": 10**6,
    "train.checkpoint_every_steps": _CHECKPOINT_STEPS,
    "train.log_every_steps": FIRST,
    "tracking.enabled": False,
}


@dataclass(frozen=True, slots=True)
class _Outcome:
    seconds: float  # from the tenth step to the last
    steps: int  # 3,000, or as many as were done when the time was over
    failures: int
    samples_lost: int  # of the plan, that the final weights never saw
    samples_repeated: int  # that they saw twice
    samples_undone: int  # that were trained on again, since the first time was undone


Drill = tuple[str, float]  # a system, and seconds between two failures
_UNITS = {
    "seconds": "s",
    "steps": "steps",
    "failures": "failures",
    "samples_lost": "samples",
    "samples_repeated": "samples",
    "samples_undone": "samples",
}


def measure(repeats: int = 1, say: EmitLine = quiet, only: Collection[str] = ()) -> Report:
    """Seconds, and samples lost, repeated and undone, of each system at each rate of failures.

    Raises:
        BadInput: torchft is to be measured and is not installed; or a part has no such name.
    """
    ways: dict[str, Callable[[float, int], _Outcome]] = {
        "kdlab": partial(_served, ("teacher", "rank")),
        "ranks": partial(_served, ("rank",)),
        "torchrun": _torchrun,
        "torchft": _torchft,
    }
    check_parts("storm", ways, only)
    if find_spec("torchft") is None and (not only or "torchft" in only):
        raise BadInput(
            "bench storm compares with torchft, which is not installed: pip install "
            "'kdlab[storm]', or leave it out: --only kdlab ranks torchrun"
        )
    jobs = [
        (name, every_s)
        for every_s in _EVERY_S
        for name in ways
        if (not only or name in only) and (name != "ranks" or every_s == min(_EVERY_S[1:]))
    ]
    outcomes: dict[Drill, list[_Outcome]] = {}

    def run_lane(lane: Sequence[Drill]) -> None:
        for name, every_s in lane:
            outcomes[name, every_s] = [ways[name](every_s, seed) for seed in range(repeats)]
            for outcome in outcomes[name, every_s]:
                say(f"{name}, {_weather(every_s)}: {outcome}")

    # Where there are cores for all, each peer beside kdlab's runs.
    lanes = [jobs]
    if (os.cpu_count() or 1) >= _CORES:
        ours = [job for job in jobs if job[0] in ("kdlab", "ranks")]
        lanes = [ours, *([job] for job in jobs if job not in ours)]
    with runs_apart(), ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(run_lane, lanes))
    return report("storm", [it for job in jobs for it in _figures(*job, outcomes)])


def _weather(every_s: float) -> str:
    return f"each_{every_s:g}_s" if every_s else "calm"


def _figures(
    name: str, every_s: float, outcomes: Mapping[Drill, Sequence[_Outcome]]
) -> list[Figure]:
    runs = outcomes[name, every_s]
    figures = [
        figure(label, [float(getattr(run, label)) for run in runs], unit)
        for label, unit in _UNITS.items()
    ]
    calm = outcomes.get(("kdlab" if name == "ranks" else name, _EVERY_S[0]))
    if calm and every_s:
        times = over([run.seconds for run in runs], [run.seconds for run in calm])
        figures.append(figure("times_calm", times, "times"))
    return at(f"{name}/{_weather(every_s)}", *figures)


def _storm(
    every_s: float, begin: float, steps: Callable[[], int], fail: Callable[[], bool]
) -> int:
    """Failures until all steps are done, the first one `every_s` after the beginning.

    There is a maximum: where a start takes longer than `every_s`, a storm would never end.
    """
    due, failures = every_s, 0
    while (passed := time.time() - begin) < _MOST_S and steps() < STEPS:
        if every_s and passed >= due and failures < _MOST_FAILURES:
            failures += fail()
            due += every_s
        time.sleep(0.1)  # between looks
    return failures


# kdlab


def _served(kinds: tuple[str, ...], every_s: float, seed: int) -> _Outcome:
    chance = random.Random(seed)

    with going(load("clothes/quickstart", _RUN)) as run:

        def steps() -> int:
            return next((e.step for e in reversed(steps_of(run))), 0)

        until(lambda: steps() >= FIRST, patience_s=_PATIENCE_S)
        begin = _logged(run, FIRST)
        failures = _storm(every_s, begin, steps, lambda: _kill(run, chance.choice(kinds)))
        done = min(steps(), STEPS)
        end = _logged(run, done)
        run.stop()
        run.wait(timeout_s=120)
        counts = lineage_of(run)
    undone = counts.lost, counts.repeated, counts.rolled_back
    return _Outcome(end - begin, done, failures, *undone)


def _logged(run: Run, step: int) -> float:
    """Time at which a run had trained so many steps."""
    return next(e.time for e in select(run.folder.events, StepLogged) if e.step >= step)


def _kill(run: Run, kind: str) -> bool:
    """Kill the newest rank, or the teacher that joined last; another one replaces it."""
    if kind == "rank":
        *_, generation = select(run.folder.events, GenerationStarted)
        pids = list(generation.pids().values())
    else:
        pids = [e.pid for e in select(run.folder.events, TeacherJoined) if e.pid]
    return any(_killed(pid) for pid in reversed(pids))


def _killed(pid: int) -> bool:
    """Kill a process; return False if it is dead already, reaped or not."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.kill()
            return True
    return False


# Without kdlab


def _torchrun(every_s: float, seed: int) -> _Outcome:
    with _peer("torchrun") as peer, _agent(peer, 0, ("--nproc-per-node=2",), {}) as agent:
        return _watched(peer, [agent], every_s, seed)


def _torchft(every_s: float, seed: int) -> _Outcome:
    from torchft.coordination import LighthouseServer

    with _peer("torchft") as peer, ExitStack() as started:
        house = LighthouseServer(
            bind="127.0.0.1:0",
            min_replicas=1,
            join_timeout_ms=_JOIN_MS,
            quorum_tick_ms=_TICK_MS,
        )
        started.callback(house.shutdown)
        port = house.address().rpartition(":")[2]
        more = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        options = ("--nproc-per-node=1",)
        groups = [
            started.enter_context(_agent(peer, group, options, more)) for group in range(2)
        ]
        return _watched(peer, groups, every_s, seed)


@contextmanager
def _peer(system: str) -> Iterator[StormPeer]:
    """A folder with photos, teacher and student as kdlab's run has them."""
    spec = load("clothes/quickstart", _RUN).spec
    data = spec.data.load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "photos.npy", data.inputs[data.train])
        np.save(folder / "labels.npy", data.labels[data.train])
        assert isinstance(spec.teacher, TeacherSpec)
        teacher = spec.teacher.model.build(len(data.classes), data.shape[0])
        save_file(teacher.state_dict(), folder / "teacher.safetensors")
        peer = StormPeer(
            system=system, folder=name, steps=STEPS, batch=BATCH, every=_CHECKPOINT_STEPS
        )
        (folder / "peer.json").write_text(json.dumps(asdict(peer)))
        yield peer


@contextmanager
def _agent(
    peer: StormPeer, group: int, options: tuple[str, ...], more: dict[str, str]
) -> "Iterator[Popen[bytes]]":
    """Start `torchrun` with one or two ranks; kill all of them in the end."""
    launched = (
        *("torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *("--max-restarts=1000", *options),
    )
    path = os.pathsep.join(filter(None, (_CHECKOUT, os.environ.get("PYTHONPATH"))))
    # Torchrun's processes find this checkout from any folder; a `Child` does by itself.
    imports = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    settings = {"OMP_NUM_THREADS": "1", "REPLICA": str(group)}
    with (Path(peer.folder) / f"agent{group}.log").open("wb") as log:
        agent = Popen(
            (sys.executable, "-m", *launched, "-m", "benchmarks.storm_peer", peer.folder),
            env=os.environ | more | imports | settings,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            start_new_session=True,
        )
    try:
        yield agent
    finally:
        with suppress(psutil.Error):
            root = psutil.Process(agent.pid)
            for process in [*root.children(recursive=True), root]:
                with suppress(psutil.Error):
                    process.kill()
        agent.wait()


def _watched(
    peer: StormPeer, agents: "list[Popen[bytes]]", every_s: float, seed: int
) -> _Outcome:
    chance = random.Random(seed)
    folder = Path(peer.folder)

    def kill() -> bool:
        return _killed(int(pid_file(folder, chance.randrange(2)).read_text()))

    def steps() -> int:
        done = _last(folder)
        if done < STEPS and any(agent.poll() for agent in agents):
            log = "".join(path.read_text()[-2000:] for path in folder.glob("agent*.log"))
            raise RunFailed(f"{peer.system} gave up after {done} steps: {log}")
        return done

    missing = f"{peer.system} has not trained"
    until(lambda: steps() >= FIRST, patience_s=_PATIENCE_S, missing=missing)
    begin = _time_of(_lines(folder), FIRST)
    failures = _storm(every_s, begin, steps, kill)
    done = min(steps(), STEPS)
    lines = _lines(folder)
    end = _time_of(lines, done)
    trained: dict[int, int] = defaultdict(int)
    undone, seen = 0, set[tuple[int, int]]()
    for line in lines:
        trained[line.step] = max(trained[line.step], line.samples)
        undone += line.undone
        if line.samples and (line.rank, line.step) in seen:
            undone += line.samples
        seen.add((line.rank, line.step))
    lost = sum(BATCH - trained[step] for step in range(FIRST + 1, done + 1))
    return _Outcome(end - begin, done, failures, lost, 0, undone)


class _Line(NamedTuple):
    rank: int
    time: float
    step: int
    samples: int
    undone: int


def _lines(folder: Path) -> list[_Line]:
    """Read the lines of both ranks, without the half line of a killed one."""
    lines = []
    for rank in range(2):
        path = steps_file(folder, rank)
        for line in path.read_text().splitlines() if path.exists() else ():
            if len(words := line.split()) == len(_Line._fields) - 1:
                at, *counts = words
                lines.append(_Line(rank, float(at), *map(int, counts)))
    return lines


def _last(folder: Path) -> int:
    """Return the number of steps that are done."""
    ends = []
    for rank in range(2):
        with suppress(FileNotFoundError, ValueError):  # nothing yet
            *_, line, _ = steps_file(folder, rank).read_text().split("\n")
            ends.append(int(line.split()[1]))
    return max(ends, default=0)


def _time_of(lines: list[_Line], step: int) -> float:
    return min(line.time for line in lines if line.step >= step)
