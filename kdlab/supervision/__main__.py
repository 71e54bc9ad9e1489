"""`python -m kdlab.supervision MODULE`: a child's main, which ends with its parent at any time."""

import os
import runpy
import sys

from kdlab.supervision import lifeline

lifeline.watch()
if sys.argv[1].startswith("benchmarks."):  # the checkout's, whoever else has the name
    sys.path.insert(0, __file__.removesuffix("/kdlab/supervision/__main__.py"))
os.umask(0o077)  # as `keep_private`, which is not imported: this process only begins
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
