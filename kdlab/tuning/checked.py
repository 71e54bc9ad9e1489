"""Load, check and start sweeps."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kdlab.cluster.notebook_components import package_components
from kdlab.cluster.transport.known_schedulers import trust_named
from kdlab.config import load as loader
from kdlab.config import yaml_text
from kdlab.config.check import construct
from kdlab.config.home import make_private, write_json, write_whole
from kdlab.config.registry import component_names
from kdlab.config.sweep_text import read_sweep
from kdlab.errors import ClusterError
from kdlab.experiment.folder import sweeps_folder
from kdlab.report import page
from kdlab.run.experiment import Experiment
from kdlab.run.handle.job_handle import Components, spawn
from kdlab.run.preflight import refuse_cells
from kdlab.tuning import samplers, simulated
from kdlab.tuning.best import earlier
from kdlab.tuning.folder import SweepFolder, check_hash, sweep_hash
from kdlab.tuning.handle import Sweep, require_name
from kdlab.tuning.plan import shares_pool
from kdlab.tuning.space import Space
from kdlab.tuning.spec import Dimension, SweepSpec


class CheckedSweep:
    """A checked sweep; `start()` runs it.

    Raises:
        SpecError, NotFoundError, BadInput: the faults, as the command line reports them.
    """

    def __init__(self, composed: loader.Composed) -> None:
        self.name = composed.name.removeprefix("sweeps/")
        if self.name.endswith(".yaml"):  # a file; others are names under configs/
            self.name = Path(self.name).stem
        self.spec = construct(SweepSpec, composed)
        samplers.check(self.spec)
        self.space = Space(self.spec)
        if self.spec.sampler["name"] == "grid":
            self.space.grid()
        self.hash = sweep_hash(self.spec)
        if self.spec.simulated:
            simulated.check(self.space.base)

    def check(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Check data, models and addresses of the unchanged experiment.

        Raises:
            BadInput: a check failed; nothing was started.
        """
        if self.spec.workers is not None:
            self.spec.workers.check()
        if not self.spec.simulated:
            Experiment(self.space.composed({})).check(say)

    def start(
        self, study: str | None = None, say: Callable[[str], None] = lambda line: None
    ) -> Sweep:
        """Start the sweep in a new process; an existing study of this name continues.

        Raises:
            BadInput: the study belongs to another sweep, or its sweep is running.
        """
        name = study or self.name.replace("/", "-")
        require_name(name)
        folder = SweepFolder(sweeps_folder() / name)
        check_hash(folder, self.hash, self.name)
        if not folder.spec.is_file():
            earlier(self.spec, self.space)  # raises if there is nothing to start from
        self.check(say)
        # Trials may name components of notebook cells in these.
        parts = [{"type": c} for d in self.spec.space.values() for c in d.choices or ()]
        components = package_components(
            component_names([self.space.base.to_dict(), *parts])
        )
        if self.spec.workers is not None:
            refuse_cells(components, "The sweep", "Dask workers")
        try:
            make_private(folder.path.parent)
            folder.path.mkdir(mode=0o700, exist_ok=True)
            with folder.held() as lock:
                self._write(folder, components)
                spawn(folder, components, lock, "kdlab.tuning.process")
        except OSError as error:
            raise ClusterError(
                f"The sweep's folder {folder.path} cannot be written: {error}. Nothing was "
                "started, and its files are unchanged."
            ) from error
        return Sweep(folder)

    def _write(self, folder: SweepFolder, components: Components) -> None:
        """Write the files that the sweep's process reads; a study that continues keeps its name."""
        text = yaml_text.dump(self.spec.to_dict())
        write_whole(folder.spec, lambda new: new.write_text(text, encoding="utf-8"))
        write_json(folder.path / "components.json", components)
        experiment = folder.origin().experiment or f"sweeps/{self.name}"
        folder.write_origin(experiment, self.hash)
        folder.write_status(state="starting", created=time.time(), error=None, result=None)

    def __repr__(self) -> str:
        base = self.spec.experiment or self.spec.simulation
        keys = ", ".join(self.spec.space)
        return f"CheckedSweep({self.name!r}: {base} over {keys}, {self.spec.trials} trials)"

    def _repr_html_(self) -> str:
        rows = [
            (key, _range_text(dimension), self.space.leaves[key].value)
            for key, dimension in self.spec.space.items()
        ]
        target = str(self.spec.experiment or self.spec.simulation)
        pool = ", one pool for all trials" if shares_pool(self.spec, self.space) else ""
        cards = [page.Card("", page.table(("key", "may be", "as it is"), rows))]
        return page.CardPage(self.name, cards, detail=f"over {target}{pool}").html()


def _range_text(dimension: Dimension) -> str:
    if dimension.choices is not None:
        return ", ".join(map(str, dimension.choices))
    text = f"{dimension.low:g} to {dimension.high:g}"
    text += " (log)" if dimension.log else ""
    text += f" times {dimension.times}" if dimension.times else ""
    when = [f"{k} is {v}" for k, v in dimension.when.items()]
    return text + (f", when {' and '.join(when)}" if when else "")


def search(
    name: str | Path | Mapping[str, object], *overrides: str | Mapping[str, object]
) -> CheckedSweep:
    """Load a sweep from `configs/sweeps/` by name, from a path to a YAML file, or from a dict.

    Raises:
        NotFoundError: no such sweep; lists the nearest.
        SpecError: lists all faults, with key and value.
    """
    trust_named(overrides)  # but not those of a file, which may be somebody else's
    if isinstance(name, Mapping):
        trust_named(name)
        tree = dict(name)
        # The same dict continues its study; another dict has another name.
        study = f"sweep-{loader.spec_hash(tree)[:8]}"
        return CheckedSweep(loader.from_dict(tree, study, overrides))
    return CheckedSweep(read_sweep(str(name), overrides))
