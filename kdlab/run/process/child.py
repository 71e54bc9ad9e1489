"""`python -m kdlab.run.process.child [MODULE] LOCK FOLDER`: the process of one run or sweep.

The process calls `main` of the module; without a module it trains a run.
"""

import fcntl
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from kdlab.config.home import keep_private
from kdlab.experiment.folder import RunFolder
from kdlab.run.process.stop_request import StopRequest, end_with, fill
from kdlab.run.process.watchdog import WatchdogParent, watched


def main(path: str, stop: Callable[[], bool]) -> int:
    """Train the run to its end and return the exit code, which the status file has too."""
    from kdlab.run.process.execution import execute
    from kdlab.run.process.run_process import RunProcess

    run = RunFolder(Path(path))
    return execute(run, lambda: RunProcess(run, stop))


if __name__ == "__main__":
    keep_private()
    request = StopRequest()  # before the seconds of imports
    *module, lock, path = sys.argv[1:]
    place, held = Path(path), int(lock)
    fill(place, held)
    if not module:
        watched(WatchdogParent(place, held))  # each time that it returns, a process begins
    end_with(place, held)
    work = import_module(module[0]).main if module else main
    code = work(path, request)
    fcntl.flock(held, fcntl.LOCK_UN)  # the status is written: the exit may take its time
    raise SystemExit(code)
