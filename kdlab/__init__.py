"""Knowledge distillation experiments in Jupyter: load, start, watch, compare.

    import kdlab

    run = kdlab.distil("photos/")       # your own photos, a folder for each class

    exp = kdlab.load("quickstart", "train.epochs=2")
    run = exp.start()
    run.live()
    run.result

    kdlab.registry             # all cards and components, such as kdlab.registry["losses/hinton"]

Import everything else by module: `kdlab.papers` for the algorithms,
`kdlab.losses` for the losses, `kdlab.testing` to test your own components.
"""

from kdlab.config import Range, Spec, SpecError, register
from kdlab.errors import KdlabError
from kdlab.run import Experiment, Run, attach, compare, load, runs
from kdlab.session import (
    attach_sweep,
    chaos,
    distil,
    follow_demand,
    live,
    look_at,
    page,
    registry,
    sweep,
)

__version__ = "0.2.0"

__all__ = [
    "Experiment",
    "KdlabError",
    "Range",
    "Run",
    "Spec",
    "SpecError",
    "attach",
    "attach_sweep",
    "chaos",
    "compare",
    "distil",
    "follow_demand",
    "live",
    "load",
    "look_at",
    "page",
    "register",
    "registry",
    "runs",
    "sweep",
]
