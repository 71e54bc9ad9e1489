"""An experiment before it runs: a config, its cards and overrides, checked."""

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdlab.cluster.transport.known_schedulers import trust_named
from kdlab.config import load as loader
from kdlab.config import yaml_text
from kdlab.config.check import construct, unknown_keys
from kdlab.errors import SpecError
from kdlab.lazy import lazy
from kdlab.report import page
from kdlab.report.page import Card, CardPage
from kdlab.run.handle.job_handle import viewers
from kdlab.run.handle.run import Run, start

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from kdlab.events.checks import CheckMade
    from kdlab.experiment import spec as specs
    from kdlab.report.pictures import Pictures
    from kdlab.run import estimate as estimates
    from kdlab.run import preflight
    from kdlab.run.outputs import first_batch
else:
    specs, preflight = lazy("kdlab.experiment.spec"), lazy("kdlab.run.preflight")
    estimates, first_batch = map(
        lazy, ("kdlab.run.estimate", "kdlab.run.outputs.first_batch")
    )


def load(name: str | Path, *overrides: str | Mapping[str, object]) -> "Experiment":
    """Load an experiment from `configs/` by name, or from a path to a YAML file.

    Args:
        name: for example "quickstart".
        overrides: "train.epochs=2", or {"train.epochs": 2}; later ones win.

    Raises:
        NotFoundError: no such config; names the nearest.
        SpecError: the spec has faults; lists each with key, line and value.
    """
    experiment = loaded(name, *overrides)
    trust_named(experiment.changes)
    return experiment


def loaded(name: str | Path, *overrides: str | Mapping[str, object]) -> "Experiment":
    """Load an experiment as `load` does, without trusting the addresses in its overrides."""
    composed = loader.compose(str(name), overrides)
    # With torch imported, the full check is as quick.
    if "torch" not in sys.modules and not composed.faults:
        early = unknown_keys(composed, "kdlab.experiment.spec", "ExperimentSpec")
        if early:
            raise SpecError(early, about=composed.name)
    experiment = Experiment(composed, loader.merged(overrides), str(name))
    experiment.spec  # noqa: B018  # checked now, so that faults show in this cell
    return experiment


class Experiment:
    """An experiment: `spec` is its checked spec, `start()` runs it."""

    def __init__(
        self,
        composed: loader.Composed,
        changes: Mapping[str, object] | None = None,
        asked: str | None = None,
    ) -> None:
        self.composed, self.changes = composed, dict(changes or {})
        self.name = composed.name
        self.asked = asked or self.name  # a path, where it was loaded by one

    @cached_property
    def spec(self) -> "specs.ExperimentSpec":
        return construct(specs.ExperimentSpec, self.composed)

    @property
    def resolved(self) -> dict[str, Any]:
        """Every key with its value, defaults included, as saved with a run."""
        return self.spec.to_dict()

    @property
    def config(self) -> "DictConfig":
        """Every key with its value as an OmegaConf tree."""
        from omegaconf import OmegaConf

        return OmegaConf.create(self.resolved)

    @property
    def hash(self) -> str:
        return loader.spec_hash(self.resolved)

    def yaml(self) -> str:
        return yaml_text.dump(self.resolved)

    def rows(self) -> list[tuple[str, object, str]]:
        """Return (dotted key, value, where it was set) of every value."""
        return [(k, v, self._origin(k)) for k, v in loader.flat(self.resolved)]

    def _origin(self, key: str) -> str:
        origins = self.composed.origins
        if key in origins:
            return origins[key]
        # A list or a card's scalar may have been set as a whole.
        parent = key.rpartition(".")[0]
        set_whole = key.rsplit(".", 1)[-1].isdigit() and parent in origins
        return origins[parent] if set_whole else "default"

    def check(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Check data, models, weights and addresses before a run.

        Raises:
            BadInput: one clear message; nothing was started.
        """
        preflight.preflight(self.spec, say)

    def checks(self) -> list["CheckMade"]:
        """Return findings on data and machine, as a run reports them when it begins."""
        return preflight.findings(self.spec)

    def start(self, say: Callable[[str], None] = lambda line: None) -> Run:
        """Check, start the run in a new process, and return at once."""
        self.check(say)
        return start(self)

    def estimate(
        self, say: Callable[[str], None] = lambda line: None
    ) -> "estimates.Estimate":
        """Estimate time, memory and disk on this machine, and the slowest side of each training.

        Measures student, teacher and views for some seconds.

        Args:
            say: called with lines of progress.

        Raises:
            BadInput: the run has several devices or local models; their plans have the times.
        """
        return estimates.estimate(self.spec, say)

    def show_batch(self, count: int = 8, *, teacher: bool = True) -> "Pictures":
        """Return the first training images as the student sees them, with the teacher's top labels.

        Args:
            count: number of images.
            teacher: show its labels; it is trained first if necessary.
        """
        return first_batch.show_batch(self.spec, count, teacher=teacher, say=print)

    def edit(self) -> object:
        """Edit the experiment in a notebook: dropdowns, checked fields, save and start."""
        return viewers["experiment"](self.asked, self.changes)

    def __repr__(self) -> str:
        about = self.composed.data.get("about", "")
        return f"Experiment({self.name!r}, spec {self.hash}): {about}"

    def _repr_html_(self) -> str:
        table = page.table(("key", "value", "set by"), self.rows())
        about = page.lines([str(self.composed.data.get("about", ""))])
        spec = f"<details><summary>resolved spec</summary>{table}</details>"
        return CardPage(self.name, [Card("", about + spec)], detail=self.hash).html()
