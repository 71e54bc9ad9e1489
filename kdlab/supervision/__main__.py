"""`python -m kdlab.supervision MODULE`: a child's main, which ends with its parent at any time."""

import runpy
import sys

from kdlab.supervision import lifeline

lifeline.watch()
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
