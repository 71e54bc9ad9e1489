"""Functions of `import kdlab` for notebooks and scripts.

This module lies above runs, sweeps and notebooks, so that none of them needs the others: a run
that shows itself calls the viewer registered here. Nothing imported at the top may import torch,
distributed, optuna, mlflow or ipywidgets: a notebook's first cell must answer at
once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdlab.errors import BadInput
from kdlab.experiment.folder import find_sweep
from kdlab.lazy import lazy
from kdlab.run import Run, attach
from kdlab.run.catalogue import Registry
from kdlab.run.handle.job_handle import viewers
from kdlab.run.new_run_options import MINUTES, NewRunOptions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from distributed.deploy import Cluster

    from kdlab import tuning
    from kdlab.cluster import deployed_pool
    from kdlab.cluster.chaos import ChaosRunner
    from kdlab.cluster.demand import DemandFollower
    from kdlab.notebook import builder, monitor, page_file, runs_together, sweep_view
    from kdlab.notebook.live_view import LiveView
    from kdlab.run import new
    from kdlab.run.handle import chaos as trouble
    from kdlab.run.handle.job_handle import JobHandle
    from kdlab.run.outputs import data_sheet
else:
    tuning, new = lazy("kdlab.tuning"), lazy("kdlab.run.new")
    deployed_pool = lazy("kdlab.cluster.deployed_pool")
    builder, monitor = lazy("kdlab.notebook.builder"), lazy("kdlab.notebook.monitor")
    page_file = lazy("kdlab.notebook.page_file")
    runs_together = lazy("kdlab.notebook.runs_together")
    sweep_view = lazy("kdlab.notebook.sweep_view")
    trouble = lazy("kdlab.run.handle.chaos")
    data_sheet = lazy("kdlab.run.outputs.data_sheet")

registry = Registry()


def look_at(
    name: str | Path,
    *overrides: str,
    say: Callable[[str], None] = print,
    closely: bool = False,
) -> "data_sheet.DataSheet":
    """Describe a data set or a folder of photos; see `kdlab.run.outputs.data_sheet.look_at`."""
    return data_sheet.look_at(name, *overrides, say=say, closely=closely)


def distil(
    data: str | Path,
    *overrides: str | Mapping[str, object],
    student: object = None,
    teacher: object = None,
    weights: str | Path | None = None,
    minutes: float = MINUTES,
    say: Callable[[str], None] = print,
) -> Run:
    """Start a distillation for photos, with choices as `kdlab new` makes them.

        run = kdlab.distil("photos/", student="timm/mobilenetv3_small_050")
        run.live()

    Args:
        data: path or URL of photos by class.
        overrides: of the chosen config, such as "train.epochs=20".
        student: name or block of a model; None chooses by machine and photos.
        teacher: name or block of the teacher's model; None chooses as well.
        weights: file of the teacher's weights, which is then not trained.
        minutes: time that the run may take on this machine.
        say: called with lines on measurements and choices.

    Raises:
        BadInput: the data or a network does not exist.
    """
    wishes = NewRunOptions(
        data=str(data),
        student=student,
        teacher=teacher,
        weights=None if weights is None else str(weights),
        minutes=minutes,
    )
    return new.experiment_for(wishes, overrides, say).start(say)


def follow_demand(
    cluster: "Cluster", **options: Any
) -> "AbstractContextManager[DemandFollower]":
    """Keep a Dask cluster at as many teachers as a pool needs, while this context lasts.

        with kdlab.follow_demand(cluster, most=8):
            kdlab.load("quickstart", f"teacher_pool.address={cluster.scheduler_address}", ...)

    See `kdlab.cluster.deployed_pool.follow_demand`, which has the options.
    """
    return deployed_pool.follow_demand(cluster, **options)


def sweep(
    name: str | Path | Mapping[str, object],
    *overrides: str | Mapping[str, object],
    study: str | None = None,
    say: Callable[[str], None] = print,
) -> "tuning.Sweep":
    """Start a sweep, by name or as a dict; see `kdlab.tuning.search` and `Search.start`."""
    return tuning.search(name, *overrides).start(study, say)


def attach_sweep(study: str = "last") -> "tuning.Sweep":
    """Return the handle of an existing sweep; see `kdlab.tuning.attach_sweep`."""
    return tuning.attach_sweep(study)


def chaos(run: Run | str, /, **spec: Any) -> "ChaosRunner":
    """Inject faults into a running run; see `kdlab.run.handle.chaos.chaos`."""
    return trouble.chaos(attach(run), **spec)


def _monitor(run: Run, renderer: "monitor.Renderer") -> "monitor.Monitor":
    return monitor.Monitor(run, renderer).show()


def _builder(asked: str, changes: Mapping[str, object]) -> "builder.Builder":
    return builder.Builder(asked, changes)


def _sweep_view(
    sweep: "JobHandle",
    page: Callable[[], str],
    importance: Callable[[], Mapping[str, float]],
) -> "sweep_view.SweepView":
    return sweep_view.SweepView(sweep, page, importance).show()


def live(*runs: Run | str) -> "LiveView":
    """Show several runs in one live view of a notebook, each in a colour, without controls.

    Raises:
        BadInput: no run was given, or there is none of a name.
    """
    if not runs:
        raise BadInput("Give the runs to show: kdlab.live(run, 'last').")
    return runs_together.RunsTogether([attach(run) for run in runs]).show()


def page(*watched: "Run | tuning.Sweep | str") -> str:
    """Return runs or a sweep as one HTML page that needs no server and no network.

        Path("run.html").write_text(kdlab.page("last"))  # or "sweeps/NAME"

    Raises:
        BadInput: nothing was given, a sweep with others, or there is none of a name.
    """
    handles = [find_job(one) for one in watched]
    runs = [one for one in handles if isinstance(one, Run)]
    sweeps = [one for one in handles if not isinstance(one, Run)]
    if not watched or (sweeps and len(watched) > 1):
        raise BadInput("A page shows one run, several runs, or one sweep.")
    view: LiveView
    if sweeps:
        view = sweep_view.SweepView(sweeps[0], lambda: "", sweeps[0].importance)
    elif len(runs) > 1:
        view = runs_together.RunsTogether(runs)
    else:
        view = monitor.Monitor(runs[0], "canvas")
    view.end()
    return page_file.page_file(view, ", ".join(one.id for one in handles))


def find_job(job: "Run | tuning.Sweep | str") -> "Run | tuning.Sweep":
    """Return the handle of a run, or of a sweep for sweeps/NAME; a handle is returned as it is."""
    if not isinstance(job, str):
        return job
    if not job.startswith("sweeps/"):
        return attach(job)
    study = job.removeprefix("sweeps/")
    find_sweep(study)  # before Optuna is imported
    return tuning.attach_sweep(study)


viewers.update(run=_monitor, experiment=_builder, sweep=_sweep_view)
