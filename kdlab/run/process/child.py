"""`python -m kdlab.run.process.child RUN_FOLDER`: the process of one run."""

import sys
from collections.abc import Callable
from pathlib import Path

from kdlab.config.home import keep_private
from kdlab.run.process.stop_request import StopRequest, end_with
from kdlab.run.process.watchdog import Keeper, watched


def main(path: str, stop: Callable[[], bool]) -> int:
    """Run to the end; the exit code. The status file says the same."""
    from kdlab.experiment.folder import RunFolder
    from kdlab.run.process.execution import execute
    from kdlab.run.process.run_process import RunProcess

    run = RunFolder(Path(path))
    with run.held(SystemExit(f"run {run.run_id} is going already in another process")):
        return execute(run, lambda: RunProcess(run, stop))


if __name__ == "__main__":
    keep_private()
    request = StopRequest()  # before the seconds of imports
    watched(Keeper(Path(sys.argv[1])))  # each time that it returns, a process begins
    end_with(Path(sys.argv[1]))
    raise SystemExit(main(sys.argv[1], request))
