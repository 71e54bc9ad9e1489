"""Plots of a study, drawn by Optuna."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import optuna

from kdlab.events.event import Emit
from kdlab.events.general import Note
from kdlab.tuning.best import complete
from kdlab.tuning.spec import SweepSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Drawing = Axes | np.ndarray[tuple[int, ...], np.dtype[np.object_]]


_ENOUGH = 10  # trials for meaningful importances


def draw(study: optuna.Study, spec: SweepSpec, folder: Path, emit: Emit) -> list[Path]:
    """Draw history, importance, slice and contour; with several objectives the Pareto front."""
    import matplotlib as mpl

    mpl.use("Agg")
    from optuna.visualization import matplotlib as plots

    first = spec.objectives[0].metric
    several = len(spec.objectives) > 1
    target = (lambda trial: float(trial.values[0])) if several else None

    def of_first(plot: Callable[..., "Drawing"]) -> Callable[[], "Drawing"]:
        return lambda: plot(study, target=target, target_name=first)

    plotters: dict[str, Callable[[], Drawing]] = {
        "history": of_first(plots.plot_optimization_history),
        "slice": of_first(plots.plot_slice),
        "timeline": lambda: plots.plot_timeline(study),
    }
    varies = len({tuple(t.values) for t in complete(study)}) > 1
    if varies:
        plotters["importance"] = lambda: plots.plot_param_importances(study)
    if varies and len(spec.space) > 1:
        plotters["contour"] = of_first(plots.plot_contour)
    if any(t.intermediate_values for t in study.get_trials(deepcopy=False)):
        plotters["intermediate"] = lambda: plots.plot_intermediate_values(study)
    if len(spec.objectives) in (2, 3):
        names = [o.metric for o in spec.objectives]
        plotters["pareto"] = lambda: plots.plot_pareto_front(study, target_names=names)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [_draw_one(name, make, folder, emit) for name, make in plotters.items()]
    return [path for path in drawn if path is not None]


def importance(study: optuna.Study) -> dict[str, float]:
    """Return the importance of each key; see `Sweep.importance`."""
    ended = complete(study)
    settings = set.intersection(*(set(t.params) for t in ended)) if ended else set()
    varied = [k for k in sorted(settings) if len({str(t.params[k]) for t in ended}) > 1]
    if len(ended) < _ENOUGH or not varied or len({t.values[0] for t in ended}) < 2:
        return {}
    sign = -1 if study.directions[0].name == "MAXIMIZE" else 1

    def target(trial: optuna.trial.FrozenTrial) -> float:
        return sign * float(trial.values[0])

    with warnings.catch_warnings(action="ignore"):  # PED-ANOVA is experimental
        shares = optuna.importance.get_param_importances(
            study,
            evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
            params=varied,
            target=target if len(study.directions) > 1 else None,
        )
    return {name: float(share) for name, share in shares.items()}


def _draw_one(
    name: str, make: "Callable[[], Drawing]", folder: Path, emit: Emit
) -> Path | None:
    from matplotlib import pyplot

    path = folder / f"{name}.png"
    try:
        with warnings.catch_warnings(action="ignore"):  # some plots are experimental
            axes = make()
        several = isinstance(axes, np.ndarray)
        grid = np.atleast_1d(np.asarray(axes, dtype=object))
        picture = grid.ravel().tolist()[0].get_figure()
        rows, columns = grid.shape if grid.ndim == 2 else (1, len(grid))
        picture.set_size_inches(max(7, 3.6 * columns), max(4, 3 * rows))
        if several:  # long labels would overlap the next plot
            picture.subplots_adjust(wspace=0.45, hspace=0.45)
        picture.savefig(path, dpi=110, bbox_inches="tight")
    except Exception as error:  # a plot must not fail a finished search
        emit(Note(message=f"Could not plot {name}: {error}"))
        return None
    finally:
        pyplot.close("all")
    return path
