"""Runs: the one place where config names meet both training and cluster.

experiment   what would run: a checked spec (light; no torch until it is asked)
preflight    what can be wrong is found before anything starts
process/     a run from inside: the process that trains
handle/      a run from outside: start, watch, steer, attach, resume
outputs/     what is made of a run: exports, model card, examination, comparison
catalogue    what there is to run, in words
simulations  the papers' machines on a simulated clock, by name
join         a teacher of one's own for a pool
doctor, ui   what works on this machine; MLflow's pages
"""

from kdlab.run.experiment import Experiment, load
from kdlab.run.handle.run import Run, attach
from kdlab.run.handle.run_list import runs
from kdlab.run.outputs.comparison import compare

__all__ = ["Experiment", "Run", "attach", "compare", "load", "runs"]
