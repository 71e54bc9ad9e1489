"""`python -m kdlab.tuning.child SWEEP_FOLDER`: the process of one sweep."""

import sys

from kdlab.config.home import keep_private
from kdlab.run.process.stop_request import StopRequest

if __name__ == "__main__":
    keep_private()
    stop = StopRequest()  # before the seconds of imports below
    from kdlab.tuning.process import main

    raise SystemExit(main(sys.argv[1], stop))
