"""Runs: the one package where config names meet both training and cluster.

experiment   a checked spec, ready to run (light: no torch until it is needed)
preflight    checks before anything starts
process/     a run from inside: the process that trains
handle/      a run from outside: start, watch, steer, attach, resume
outputs/     products of a run: exports, model card, examination, comparison
catalogue    listings of configs, cards and components
simulations  the papers' machines on a simulated clock, by name
join         this machine as a teacher of a pool
doctor, ui   checks of this machine; MLflow's pages
"""

from kdlab.run.experiment import Experiment, load
from kdlab.run.handle.run import Run, attach
from kdlab.run.handle.run_list import runs
from kdlab.run.outputs.comparison import compare

__all__ = ["Experiment", "Run", "attach", "compare", "load", "runs"]
