"""`python -m kdlab.supervision MODULE`: a child's main, which ends with its parent at any time."""

import os
import runpy
import sys

from kdlab.supervision import lifeline

lifeline.watch()
os.umask(0o077)  # as `keep_private`, which is not imported: this process only begins
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
