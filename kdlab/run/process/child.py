"""`python -m kdlab.run.process.child LOCK RUN_FOLDER`: the process of one run."""

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path

from kdlab.config.home import keep_private
from kdlab.run.process.stop_request import StopRequest, end_with, fill
from kdlab.run.process.watchdog import Keeper, watched


def main(path: str, stop: Callable[[], bool]) -> int:
    """Run to the end; the exit code. The status file says the same."""
    from kdlab.experiment.folder import RunFolder
    from kdlab.run.process.execution import execute
    from kdlab.run.process.run_process import RunProcess

    run = RunFolder(Path(path))
    return execute(run, lambda: RunProcess(run, stop))


if __name__ == "__main__":
    keep_private()
    request = StopRequest()  # before the seconds of imports
    lock, path = int(sys.argv[1]), sys.argv[2]
    fill(Path(path), lock)
    watched(Keeper(Path(path), lock))  # each time that it returns, a process begins
    end_with(Path(path), lock)
    code = main(path, request)
    fcntl.flock(lock, fcntl.LOCK_UN)  # all is said: its own end may take its time
    raise SystemExit(code)
