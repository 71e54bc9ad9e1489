"""`python -m kdlab.supervision MODULE`: run a child's main and end when its parent does."""

import os
import runpy
import sys

from kdlab.supervision import lifeline

lifeline.watch()
if sys.argv[1].startswith("benchmarks."):  # the checkout's, not another of that name
    sys.path.insert(0, __file__.removesuffix("/kdlab/supervision/__main__.py"))
os.umask(0o077)  # what `keep_private` sets, without its import: this process only starts
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
