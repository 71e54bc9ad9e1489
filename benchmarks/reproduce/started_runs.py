"""The runs that a reproduction started: after an interruption it continues with them.

`RUNS` in its folder has their ids, by the hashes of the experiment and of all of kdlab, until the
result is written.
"""

from contextlib import suppress
from math import inf
from pathlib import Path

from benchmarks.reproduce.freshness import code_of
from kdlab.config.home import find_as, write_json
from kdlab.errors import NotFoundError
from kdlab.report.figures import EmitLine
from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import Run, attach

RUNS = "runs.json"


def run_of(experiment: Experiment, folder: Path, say: EmitLine) -> tuple[Run, float]:
    """Return the run that an interrupted reproduction has of an experiment, or start one.

    A run that ended early is resumed. With it comes the time of the first event to be shown.

    Raises:
        MessageError: `RUNS` is damaged.
    """
    path, key = folder / RUNS, f"{experiment.hash} {code_of(['.'])['.']}"
    started = find_as(dict[str, str], path, "Delete it to begin anew.") or {}
    if key in started:
        with suppress(NotFoundError):  # where it was deleted
            run = attach(started[key])
            state = run.state
            say(f"{run.id} of an interrupted reproduction is {state}; {RUNS} has it")
            ended_early = state in ("stopped", "failed", "lost")
            return run.resume() if ended_early else run, inf if state == "finished" else 0.0
    run = experiment.start(say)
    write_json(path, started | {key: run.id})
    return run, 0.0
