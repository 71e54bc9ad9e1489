"""Knowledge distillation experiments in Jupyter: load, start, watch, compare.

    import kdlab

    exp = kdlab.load("quickstart", "train.epochs=2")
    run = exp.start()
    run.live()
    run.result

    kdlab.registry             # all there is; kdlab.registry["losses/hinton"] is one of it

Everything else is imported by module: `kdlab.papers` for the algorithms,
`kdlab.losses` for the losses, `kdlab.testing` to test your own components.
"""

from typing import Any

# Nothing imported here may import torch, distributed, optuna, mlflow or ipywidgets: a
# notebook's first cell must answer at once.
from kdlab.config import Range, Spec, SpecError, register
from kdlab.errors import KdlabError
from kdlab.run import Experiment, Run, attach, compare, load, runs
from kdlab.run.catalogue import Registry

registry = Registry()
__version__ = "0.1.0"


def sweep(name: Any, *overrides: Any, study: str | None = None, say: Any = print) -> Any:
    """Start a sweep, by name or as a dict; see `kdlab.tuning.search` and `Search.start`."""
    from kdlab.tuning import search  # imports torch and optuna

    return search(name, *overrides).start(study, say)


def attach_sweep(study: str = "last") -> Any:
    """A sweep that exists, running or not; see `kdlab.tuning.attach_sweep`."""
    from kdlab.tuning import attach_sweep as attach_to  # imports torch and optuna

    return attach_to(study)


def chaos(run: Run, **spec: Any) -> Any:
    """Trouble for a running run; see `kdlab.run.chaos_outside.chaos`."""
    from kdlab.run.chaos_outside import chaos as begin  # imports distributed

    return begin(run, **spec)


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
    "load",
    "register",
    "registry",
    "runs",
    "sweep",
]
