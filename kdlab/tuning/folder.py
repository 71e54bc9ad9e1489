"""A sweep's folder, and the study in it.

runs/sweeps/<study>/
    sweep.yaml      the resolved sweep; experiment.json its name and hash
    study.journal   Optuna's storage (study.db with `storage: sqlite`)
    events.jsonl    all events; status.json state, process, result
    sweep.log       output of the processes
    trials/<study>-0007/   a run folder for each trial
    confirm/        run folders of the best and of the unchanged experiment
    best/           the best trial as configs/<study>.yaml and cards
    figures/        history, importance, slice, contour, Pareto front
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from kdlab.config.check import construct
from kdlab.config.load import from_dict, spec_hash
from kdlab.errors import BadInput, NotFoundError
from kdlab.experiment.folder import RunFolder, find_sweep
from kdlab.tuning import samplers
from kdlab.tuning.spec import SweepSpec

SPEC_HASH, OPTUNA = "kdlab.sweep_hash", "kdlab.optuna"
# A study continues when only these differ: they do not change its trials.
_FREE = (
    *("about", "trials", "time_limit_s", "jobs", "retries", "confirm", "keep"),
    *("tracking", "workers", "share_pool"),
)


@dataclass(frozen=True, slots=True)
class SweepFolder(RunFolder):
    """A sweep's folder; status and events are as in a run folder."""

    @property
    def log(self) -> Path:
        return self.path / "sweep.log"

    @property
    def spec(self) -> Path:
        return self.path / "sweep.yaml"

    @property
    def resume_command(self) -> str:
        return f"kdlab sweep {self.spec} --study {self.run_id}"

    def sweep(self) -> SweepSpec:
        """Read the resolved sweep; BadInput where its file is damaged."""
        return construct(SweepSpec, from_dict(self.resolved(self.spec.name), self.run_id))

    def trial(self, number: int) -> Path:
        return self.path / "trials" / f"{self.run_id}-{number:04d}"

    def storage(self, kind: str) -> Path:
        return self.path / ("study.db" if kind == "sqlite" else "study.journal")


def find(study: str) -> SweepFolder:
    """Find a sweep by name or "last"; NotFoundError, with the nearest, where there is none."""
    return SweepFolder(find_sweep(study).path)


def sweep_hash(spec: SweepSpec) -> str:
    """Hash a sweep without the keys that may differ between sessions."""
    counted = {k: v for k, v in spec.to_dict().items() if k not in _FREE}
    return spec_hash(
        counted | {"real": None}
    )  # removed field: keeps the hash of earlier studies


def check_hash(folder: SweepFolder, wanted: str, name: str) -> None:
    """Raise BadInput for an existing study of another sweep."""
    if not folder.spec.is_file():
        return
    study_hash = folder.origin().spec_hash
    if study_hash != wanted:
        raise BadInput(
            f"The study {folder.run_id} is of another sweep: its hash is {study_hash}, that of "
            f"{name} is {wanted}. Trials of both would not be comparable.\n"
            f"Continue its own sweep, {folder.spec}, with\n"
            f"    kdlab sweep {folder.spec} --study {folder.run_id}\n"
            f"Start a new study under another name:\n    kdlab sweep {name} --study NAME"
        )


def open_study(folder: SweepFolder, spec: SweepSpec, of: str) -> optuna.Study:
    """Open the study of a sweep, or create it; `of` is the sweep's hash."""
    path = folder.storage(spec.storage)
    if spec.storage == "journal":
        mend(path)
    study = optuna.create_study(
        study_name=folder.run_id,
        storage=_storage(path, spec.storage),
        sampler=samplers.sampler(spec),
        pruner=samplers.pruner(spec),
        directions=spec.directions(),
        load_if_exists=True,
    )
    trials = len(study.get_trials(deepcopy=False))
    if trials:
        study.sampler = samplers.sampler(spec, trials)
    if SPEC_HASH not in study.user_attrs:
        study.set_user_attr(SPEC_HASH, of)
        study.set_user_attr(OPTUNA, optuna.__version__)
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            study.set_metric_names([o.metric for o in spec.objectives])
    return study


def read_study(folder: SweepFolder, kind: str) -> optuna.Study:
    """Open a study for reading, also during a sweep; NotFoundError where it has none yet."""
    path = folder.storage(kind)
    if not path.is_file():
        raise NotFoundError(f"The sweep {folder.run_id} has no study yet.")
    return optuna.load_study(study_name=folder.run_id, storage=_storage(path, kind))


def _storage(path: Path, kind: str) -> BaseStorage:
    if kind == "journal":
        return JournalStorage(JournalFileBackend(str(path)))
    return RDBStorage(f"sqlite:///{path}")


def mend(journal: Path) -> None:
    """Remove an incomplete last line, left by a killed process or a full disk.

    Optuna reads such a line as the end, and would append to it.
    """
    # The holder of Optuna's lock has ended: the caller holds that of the sweep.
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.is_file():
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
