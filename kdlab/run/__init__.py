"""Runs: the one place where config names meet both training and cluster.

experiment   what would run: a checked spec (light; no torch until it is asked)
spec         the whole experiment as one spec
preflight    what can be wrong is found before anything starts
handle       a run from outside: start, watch, wait, stop, attach
process      a run from inside: the process that trains
"""

from kdlab.run.experiment import Experiment, load
from kdlab.run.handle import Run, attach, runs
from kdlab.run.side_by_side import compare

__all__ = ["Experiment", "Run", "attach", "compare", "load", "runs"]
