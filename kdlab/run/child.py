"""`python -m kdlab.run.child RUN_FOLDER`: the process of one run."""

import sys

from kdlab.run.stop_request import StopRequest

if __name__ == "__main__":
    stop = StopRequest()  # before the seconds of imports below
    from kdlab.run.process import main

    raise SystemExit(main(sys.argv[1], stop))
