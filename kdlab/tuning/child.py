"""`python -m kdlab.tuning.child SWEEP_FOLDER`: the process of one sweep."""

import sys
from pathlib import Path

from kdlab.config.home import keep_private
from kdlab.run.process.stop_request import StopRequest, end_with

if __name__ == "__main__":
    keep_private()
    stop = StopRequest()  # before the seconds of imports below
    from kdlab.tuning.process import main

    end_with(Path(sys.argv[1]))
    raise SystemExit(main(sys.argv[1], stop))
