"""`kdlab bench pipe_bd`: Pipe-BD, its ablations and both baselines, side by side.

    compression, nas   every variant of Fig. 4 for a workload, what its steps are made of
               (Fig. 2), and how far the planner's prediction is off
    batches    the speed-up over DP at four batch sizes (Fig. 6)
    memory     what a device needs in each variant (Fig. 7)
    planner    seconds for 64 blocks on 64 devices

*Ideal* is measured too: every device does all blocks by itself, with the whole batch, while
the others do; that divided by their number is a step without waiting or sharing.
"""

import random
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from kdlab.bench.block_rank import VARIANTS, Variant
from kdlab.bench.parts import measured
from kdlab.errors import ClusterError
from kdlab.messages import typed
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.hybrid_plan import dynamic
from kdlab.report.figures import Figure, Report, figure
from kdlab.supervision.children import Child

WORKLOADS = ("compression", "nas")
DEVICES = 2
BATCH = 32
BATCHES = (8, 16, 32, 64)
PROFILE_S = 15.0
# Steps of a slice, and how far a stage may be ahead. A supernet's steps differ by their paths,
# and devices wait for each other at a slice's end and where one is further ahead than the
# lead: in short slices one always has drawn more work.
SLICES: dict[str, dict[str, int]] = {
    "compression": {"steps": 2, "lead": 2},
    "nas": {"steps": 8, "lead": 8},
}
_PATIENCE_S = 1800.0


def measure(
    repeats: int = 6,
    say: Callable[[str], None] = lambda line: None,
    only: Collection[str] = (),
) -> Report:
    """All figures, or those of some parts; `repeats` rounds for each ratio."""
    plans: dict[str, Any] = {}
    parts = {
        "compression": lambda: speed("compression", repeats, say, plans),
        "nas": lambda: speed("nas", repeats, say, plans),
        "batches": lambda: batches(max(2, repeats // 2), say),
        "memory": lambda: memory(say, plans),
        "planner": planner,
    }
    return measured("pipe_bd", parts, only)


def speed(
    workload: str, rounds: int, say: Callable[[str], None], plans: dict[str, Any]
) -> list[Figure]:
    results = _ranks(
        "measure",
        workload,
        say,
        variants=VARIANTS,
        rounds=_rounds(workload, rounds),
        warm_up=2,
        **SLICES[workload],
    )
    plans[workload] = results[0]["programmes"]
    return _speed_figures(workload, results)


def _rounds(workload: str, repeats: int) -> int:
    """Long slices are fewer."""
    return repeats if SLICES[workload]["steps"] < 4 else max(2, repeats // 2)


def _speed_figures(workload: str, results: list[dict[str, Any]]) -> list[Figure]:
    seconds = results[0]["seconds"]  # barrier to barrier: the same at every rank
    pipe = seconds["tr_dpu_ahd"]
    ideal = [s / DEVICES for s in seconds["ideal"]]

    def over(base: list[float], own: list[float]) -> list[float]:
        return [b / o for b, o in zip(base, own, strict=True)]

    over_dp = over(seconds["dp"], pipe)
    bound = results[0]["bound_over_dp"]
    nas = workload == "nas"
    found = [
        figure(f"of_ideal/{workload}", over(ideal, pipe), "ratio", ">= 0.93"),
        figure(f"over_dp/{workload}", over_dp, "times", None if nas else ">= 3.3"),
        figure(
            f"over_ls/{workload}",
            over(seconds["ls"], pipe),
            "times",
            ">= 1" if nas else None,
        ),
        figure(
            f"over_dp_of_bound/{workload}",
            [value / bound for value in over_dp],
            "ratio",
            ">= 0.9" if nas else None,
        ),
        figure(f"bound_over_dp/{workload}", [bound], "times"),
        _predicted(workload, "tr_dpu_ahd", results, goal=True),
    ]
    found += [
        _predicted(workload, name, results)
        for name in ("dp", "ls", "tr", "tr_dpu", "tr_ir")
    ]
    for name in VARIANTS:
        own = seconds[name] if name != "ideal" else ideal
        found.append(figure(f"step_ms/{workload}/{name}", [1e3 * s for s in own], "ms"))
        if name not in ("dp", "ideal"):
            label = f"speed_over_dp/{workload}/{name}"
            found.append(figure(label, over(seconds["dp"], own), "times"))
        for part in sorted({part for one in results for part in one["parts"][name]}):
            each = [1e3 * one["parts"][name].get(part, 0.0) for one in results]
            found.append(figure(f"part_ms/{workload}/{name}/{part}", each, "ms"))
    return found


def _predicted(
    workload: str, name: str, results: list[dict[str, Any]], *, goal: bool = False
) -> Figure:
    """The planner's step time over the measured one; 1 is right, whichever side it is off.

    By a short profile of the same round: what is tested is the cost model, not the host.
    """
    pairs = zip(results[0]["predicted"][name], results[0]["seconds"][name], strict=True)
    values = [predicted / measured for predicted, measured in pairs]
    label = f"predicted_over_measured/{workload}"
    made = figure(label if goal else f"{label}/{name}", values, "ratio")
    if goal:
        made["goal"] = "0.9 to 1.1"
        made["holds"] = 0.9 <= made["value"] <= 1.1
    return made


def batches(rounds: int, say: Callable[[str], None]) -> list[Figure]:
    found = []
    for workload in WORKLOADS:
        for batch in BATCHES:
            results = _ranks(
                "measure", workload, say, batch=batch, warm_up=1, **SLICES[workload],
                rounds=_rounds(workload, rounds),
                variants=("dp", "tr_dpu", "tr_dpu_ahd"), profile_s=PROFILE_S / 2,
            )  # fmt: skip
            seconds = results[0]["seconds"]
            for name in ("tr_dpu", "tr_dpu_ahd"):
                values = [d / o for d, o in zip(seconds["dp"], seconds[name], strict=True)]
                label = f"speed_over_dp_at_batch/{workload}/{name}/{batch}"
                found.append(figure(label, values, "times"))
    return found


def memory(say: Callable[[str], None], plans: dict[str, Any]) -> list[Figure]:
    """Each variant in processes of its own, since a process does not give memory back."""
    found: list[Figure] = []
    for workload in WORKLOADS:
        known = plans.get(workload)
        if known is None:
            results = _ranks(
                "measure",
                workload,
                say,
                variants=VARIANTS[:-1],
                rounds=1,
                steps=1,
                warm_up=0,
                lead=SLICES[workload]["lead"],
            )
            known = results[0]["programmes"]
        largest: dict[Variant, float] = {}
        for name in VARIANTS[:-1]:
            each = [
                one["mb"]
                for one in _ranks(
                    "memory", workload, say, programme=known[name], variants=(), steps=4
                )
            ]
            largest[name] = max(each)
            found.append(figure(f"memory_mb/{workload}/{name}", each, "MB"))
            say(f"memory {workload} {name}: {', '.join(f'{mb:.0f} MB' for mb in each)}")
        ratio = largest["tr_dpu_ahd"] / largest["dp"]
        found.append(figure(f"memory_over_dp/{workload}", [ratio], "ratio"))
    return found


def planner() -> list[Figure]:
    """64 blocks of random costs on 64 devices; with and without transfers that show."""
    found = []
    for label, overlap in (("64x64", 1.0), ("64x64/exposed", 0.5)):
        took = []
        for seed in range(5):
            chance = random.Random(seed)
            rows = (1, 16, 64, 128, 256)
            blocks = []
            for _ in range(64):
                whole = chance.uniform(1.0, 10.0)
                times = {r: whole * (0.1 + 0.9 * r / 256) for r in rows}
                own = {r: 2 * s for r, s in times.items()}
                blocks.append(
                    Block(
                        teacher_s=times, student_s=own, output_bytes=4e3, gradient_bytes=1e6
                    )
                )
            link = DeviceLink(bytes_per_s=1e9, overlap=overlap)
            profile = Profile(types={"gpu": blocks}, devices=("gpu",) * 64, link=link)
            begin = time.perf_counter()
            dynamic(StageCosts(profile, 256))
            took.append(time.perf_counter() - begin)
        goal = "<= 1" if label == "64x64" else None
        found.append(figure(f"plan_seconds/{label}", took, "s", goal))
    return found


def _ranks(
    what: str, workload: str, say: Callable[[str], None], **config: Any
) -> list[dict[str, Any]]:
    """What each of the ranks found; they are processes of their own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shared = {
        "what": what,
        "workload": workload,
        "world": DEVICES,
        "batch": BATCH,
        "device": device,
        "profile_s": PROFILE_S,
    } | config
    with tempfile.TemporaryDirectory() as folder:
        meeting = {"meet_at": f"file://{folder}/meet"}
        children = [
            Child(
                "kdlab.bench.block_rank",
                shared | meeting | {"rank": rank},
                Path(folder) / f"rank{rank}.log",
                environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(DEVICES)
        ]
        try:
            return [_done(child, say, workload) for child in children]
        finally:
            for child in children:
                child.stop()


def _done(child: Child, say: Callable[[str], None], workload: str) -> dict[str, Any]:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        alive = child.alive()  # asked first: its last words are read below
        for message in child.messages():
            if "done" in message:
                return typed(dict[str, Any], message["done"])
            say(f"{workload} {message['say']}")
        if not alive:
            raise ClusterError(child.exit_report("ended before it was done"))
        time.sleep(0.05)  # between looks at a pipe
    raise ClusterError(child.exit_report(f"was not done within {_PATIENCE_S:.0f} s"))
