"""Knowledge distillation experiments in Jupyter: load, start, watch, compare.

    import kdlab

    exp = kdlab.load("quickstart", "train.epochs=2")
    run = exp.start()
    run.live()
    run.result

Everything else is imported by module: `kdlab.papers` for the algorithms,
`kdlab.losses` for the losses, `kdlab.testing` to test your own components.
"""

from typing import Any

# Nothing imported here may import torch, distributed, optuna, mlflow or ipywidgets: a
# notebook's first cell must answer at once.
from kdlab.config import Range, Spec, SpecError, register
from kdlab.errors import KdlabError
from kdlab.run import Experiment, Run, attach, compare, load, runs

__version__ = "0.1.0"


def chaos(run: Run, **spec: Any) -> Any:
    """Trouble for a running run; see `kdlab.run.unrest.chaos`."""
    from kdlab.run.unrest import chaos as begin  # imports distributed

    return begin(run, **spec)


__all__ = [
    "Experiment",
    "KdlabError",
    "Range",
    "Run",
    "Spec",
    "SpecError",
    "attach",
    "chaos",
    "compare",
    "load",
    "register",
    "runs",
]
