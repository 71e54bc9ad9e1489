"""Cost of a sweep's driver, how well two workers share trials, how soon a teacher is free.

Trials are short and real but for their teachers, which are emulated: each student holds one
of them and waits for it most of the time, so that two trials do not slow each other down by
computing (but for the reader of soft labels that each starts, a second of processor time).
The same sweep is carried out by one worker and by two, in turns.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from benchmarks.harness import in_turns, quiet, report, runs_apart, until
from kdlab.cluster.transport.security import load_credentials
from kdlab.cluster.transport.wire import ask
from kdlab.config.load import from_dict
from kdlab.errors import ClusterError, SchedulerUnreachable
from kdlab.events.sweeps import TrialDone, TrialStarted, TrialStopping
from kdlab.events.teachers import PoolReady
from kdlab.report.figures import EmitLine, Report, figure, over
from kdlab.tuning.checked import CheckedSweep

_TRIALS = 12
_PATIENCE_S = 20.0
_OVERRIDES = {
    "teacher_pool": {"type": "cluster/emulated_pool", "teachers": 2, "t_t": 700},
    "soft_labels": {"type": "cluster/served", "lt": 64, "ut": 512, "at_most": 1},
    "train.epochs": 12,
}
_SWEEP: dict[str, object] = {
    "experiment": "smoke/served",
    "overrides": _OVERRIDES,
    "space": {
        "loss.temperature": {"low": 1, "high": 8, "log": True},
        "train.lr": {"low": 0.01, "high": 0.2, "log": True},
    },
    "objectives": [{"metric": "validation_top1"}],
    "trials": _TRIALS,
    "confirm": None,
    "tracking": {"enabled": False},
}


def measure(repeats: int = 3, say: EmitLine = quiet, trials: int = _TRIALS) -> Report:
    """Measure driver time per trial, and half the speed-up of two workers over one.

    Raises:
        RunFailed: a sweep failed.
    """
    driver_ms, freed = list[float](), list[float]()

    def executed(jobs: int) -> float:
        study = f"r{len(driver_ms)}-j{jobs}"
        seconds, result = carried_out(_SWEEP | {"jobs": jobs, "trials": trials}, study)
        driver_ms.append(float(result["driver_ms_per_trial"]))
        return seconds

    works = {"two workers": partial(executed, 2), "one": partial(executed, 1)}
    with runs_apart():
        times = in_turns(works, repeats, say, f"s of {trials} trials")
        for number in range(repeats):
            freed += _freed(f"pruned{number}")
    shares = [share / 2 for share in over(times["one"], times["two workers"])]
    return report(
        "sweep",
        [
            figure("driver_ms_per_trial", driver_ms, "ms"),
            figure("parallel_efficiency", shares, "share"),
            figure("seconds_per_trial", [s / trials for s in times["one"]], "s"),
            figure("seconds_until_a_pruned_trial_has_no_teacher", freed, "s"),
        ],
    )


def carried_out(tree: Mapping[str, object], study: str) -> tuple[float, dict[str, Any]]:
    """Seconds from the first trial's beginning to the last one's end, and the result.

    Args:
        tree: spec of a sweep whose trials all end well.
        study: its name.

    Raises:
        ClusterError: some trials did not end well.
    """
    sweep = CheckedSweep(from_dict(tree, "bench")).start(study)
    sweep.wait()
    result = sweep.result
    events = list(sweep.events())
    begun = [e.time for e in events if isinstance(e, TrialStarted)]
    ended = [e.time for e in events if isinstance(e, TrialDone)]
    if result["trials"]["complete"] != tree["trials"]:
        raise ClusterError(f"Only {result['trials']} ended well; see {sweep.path}.")
    return max(ended) - min(begun), result


def _freed(study: str) -> list[float]:
    """Seconds from the event that a trial is pruned until the pool has dropped its student."""
    tree = _SWEEP | {
        "jobs": 1,
        "trials": 3,
        "defaults": False,
        "overrides": _OVERRIDES | {"train.epochs": 500},
        "pruner": {"name": "threshold", "lower": 101.0, "n_warmup_steps": 1},
    }
    sweep = CheckedSweep(from_dict(tree, "bench")).start(study)
    seconds, pruned, address = list[float](), "", ""
    for event in sweep.events(follow=True):
        if isinstance(event, PoolReady):
            address = event.address
        elif isinstance(event, TrialStopping):
            pruned = f"{study}-{event.number:04d}/served/seed0"
            seconds.append(_until_gone(address, pruned) - event.time)
    if not seconds:
        raise ClusterError(f"No trial was pruned; see {sweep.path}.")
    return seconds


def _until_gone(address: str, student: str) -> float:
    """Wait until the pool has no such student; return the time, in seconds since 1970."""
    tls = load_credentials(address)

    def gone() -> bool:
        with suppress(SchedulerUnreachable):  # after the last trial the pool itself goes
            return student not in ask(address, "kdlab_status", tls=tls)["students"]
        return True

    until(gone, patience_s=_PATIENCE_S, missing=f"{student} keeps its teacher")
    return time.time()
