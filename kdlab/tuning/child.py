"""`python -m kdlab.tuning.child LOCK SWEEP_FOLDER`: the process of one sweep."""

import fcntl
import sys
from pathlib import Path

from kdlab.config.home import keep_private
from kdlab.run.process.stop_request import StopRequest, end_with, fill

if __name__ == "__main__":
    keep_private()
    stop = StopRequest()  # before the seconds of imports below
    lock, path = int(sys.argv[1]), sys.argv[2]
    fill(Path(path), lock)
    from kdlab.tuning.process import main

    end_with(Path(path), lock)
    code = main(path, stop)
    fcntl.flock(lock, fcntl.LOCK_UN)  # all is said: its own end may take its time
    raise SystemExit(code)
