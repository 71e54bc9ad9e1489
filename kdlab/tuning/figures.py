"""Pictures of a study, by Optuna."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from kdlab.events.event import Emit
from kdlab.events.general import Note
from kdlab.tuning.spec import SweepSpec


def draw(study: optuna.Study, spec: SweepSpec, folder: Path, emit: Emit) -> list[Path]:
    """History, importance, slice, contour; of several objectives the Pareto front."""
    import matplotlib as mpl

    mpl.use("Agg")
    from optuna.visualization import matplotlib as plots

    first = spec.objectives[0].metric
    several = len(spec.objectives) > 1
    of: dict[str, Any] = {"target_name": first}
    if several:
        of["target"] = lambda trial: trial.values[0]
    wanted: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(study, **of),
        "slice": lambda: plots.plot_slice(study, **of),
        "timeline": lambda: plots.plot_timeline(study),
    }
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    varied = len({tuple(t.values) for t in complete}) > 1
    if varied:
        wanted["importance"] = lambda: plots.plot_param_importances(study)
    if varied and len(spec.space) > 1:
        wanted["contour"] = lambda: plots.plot_contour(study, **of)
    if any(t.intermediate_values for t in study.get_trials(deepcopy=False)):
        wanted["intermediate"] = lambda: plots.plot_intermediate_values(study)
    if len(spec.objectives) in (2, 3):
        names = [o.metric for o in spec.objectives]
        wanted["pareto"] = lambda: plots.plot_pareto_front(study, target_names=names)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path for name, make in wanted.items() if (path := _drawn(name, make, folder, emit))
    ]


def _drawn(name: str, make: Callable[[], Any], folder: Path, emit: Emit) -> Path | None:
    from matplotlib import pyplot

    path = folder / f"{name}.png"
    try:
        with warnings.catch_warnings(action="ignore"):  # of plots that are experimental
            axes = make()
        several = isinstance(axes, np.ndarray)
        picture = (axes.flat[0] if several else axes).get_figure()
        rows, columns = (
            (axes.shape if axes.ndim == 2 else (1, len(axes))) if several else (1, 1)
        )
        picture.set_size_inches(max(7, 3.6 * columns), max(4, 3 * rows))
        if several:  # labels of one are long enough to lie on the next
            picture.subplots_adjust(wspace=0.45, hspace=0.45)
        picture.savefig(path, dpi=110, bbox_inches="tight")
    except Exception as error:  # a picture never fails a search that has its result
        emit(Note(message=f"No picture of {name}: {error}"))
        return None
    finally:
        pyplot.close("all")
    return path
