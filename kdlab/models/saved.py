"""A trained network from where it was put: a folder, a model hub, or MLflow.

It is brought to this machine once and then read from there, so all processes of all runs have
the same, and a pool's teachers get its weights from the pool: they ask neither hub nor MLflow.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from kdlab.codec import MessageError
from kdlab.config import credentials, register
from kdlab.config.home import home, read_object
from kdlab.config.kept import kept, key_of
from kdlab.config.seal import file_sha256
from kdlab.errors import Fault, SpecError, WeightsError, short
from kdlab.models.exported import spec_of
from kdlab.models.model import ModelSpec, Statistics, read_card
from kdlab.models.timm import TimmModel, shown_by

if TYPE_CHECKING:  # it takes a second
    from mlflow import MlflowClient

_HUB = "hf-hub:"
_OF_MLFLOW = ("models:/", "runs:/", "mlflow-artifacts:/")
_FIXED = re.compile(r"models:/(m-\w+|[^@]+/\d+)$|runs:/|mlflow-artifacts:/")
_SAID = 300  # characters of what others say of their errors
# Arguments that are known otherwise; a pooling that is not the network's own has other weights.
_KNOWN = {"in_chans", "num_classes", "global_pool"}
# What a folder holds: one of kdlab's exports, or what timm and hubs keep.
_OWN, _TIMM = "student.safetensors", "model.safetensors"


@register("models/saved")
@dataclass(frozen=True, kw_only=True)
class SavedModel(ModelSpec):
    """A trained network as it is: nothing is trained, and its architecture is in its files.

    place: a folder (what `kdlab export` wrote, or model.safetensors beside config.json as timm
        and hubs have it); `hf-hub:OWNER/NAME@REVISION`; or a model that kdlab logged in
        MLflow: `models:/NAME/VERSION`, `models:/m-ID`, `runs:/ID/PATH`.
    store: address of the MLflow server; null is what MLFLOW_TRACKING_URI says.
    """

    place: str
    store: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", self.place)  # it has some, and is not trained

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        yield from credentials.faults("store", self.store)
        if self.place.startswith(_HUB) and "@" not in self.place and self.sha256 is None:
            yield Fault(
                "place",
                f"is {self.place}, which may be another model tomorrow; name the revision, as in "
                f"{self.place}@COMMIT, or the sha256 of its weights",
            )
        if self.weights not in (None, self.place):
            yield Fault(
                "weights", "are those of `place`; name the network itself for others"
            )
        if self.place.startswith("models:/") and not _FIXED.match(self.place):
            yield Fault(
                "place",
                f"is {self.place}, which may be another model tomorrow; name the version, as in "
                "models:/NAME/3, or the model's id",
            )

    @cached_property
    def folder(self) -> Path:
        """Where its files are, on this machine.

        Raises:
            WeightsError: they are not where `place` says, or cannot be fetched.
        """
        if not self.place.startswith((_HUB, *_OF_MLFLOW)):
            return _checked(Path(self.place).expanduser(), self.place)
        server = credentials.masked(self._server())
        own = home() / "models" / key_of(f"{server} {self.place}")
        return kept(own, lambda: own if own.is_dir() else None, partial(self._fetch, own))

    def _fetch(self, own: Path) -> Path:
        fresh = own.with_suffix(".part")
        shutil.rmtree(fresh, ignore_errors=True)
        if self.place.startswith(_HUB):
            _from_hub(self.place, fresh)
        else:
            self._from_mlflow(fresh)
        return _checked(fresh, self.place).rename(own)

    def _server(self) -> str:
        """Whom it is fetched from: two servers may have different models of one name."""
        if self.place.startswith(_HUB):
            return os.environ.get("HF_ENDPOINT", "")
        if self.store is not None:
            return self.store
        import mlflow

        return str(mlflow.get_tracking_uri())

    def _from_mlflow(self, target: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException

        store = None if self.store is None else credentials.revealed(self.store)
        target.mkdir(parents=True)
        try:
            place = _resolved(self.place, MlflowClient(tracking_uri=store))
            found = download_artifacts(place, dst_path=str(target), tracking_uri=store)
        except (MlflowException, OSError) as error:
            where = credentials.masked(self.store or "MLFLOW_TRACKING_URI")
            raise WeightsError(
                f"MLflow ({where}) did not give {self.place}: "
                f"{short(credentials.masked(str(error)), _SAID)}"
            ) from error
        for file in Path(found).rglob("student.*"):
            shutil.move(file, target / file.name)

    @cached_property
    def network(self) -> ModelSpec:
        """What it is, without its weights.

        Raises:
            WeightsError: its files do not say.
        """
        if (self.folder / _OWN).is_file():
            spec, card = spec_of(self.folder / _OWN), read_card(self.folder / _OWN)
            if isinstance(spec, SavedModel):
                raise WeightsError(
                    f"{self.place} names another place ({spec.place}) instead of a network. "
                    "Export it again with this version of kdlab."
                )
            found = file_sha256(self.folder / _OWN)
            if card["sha256"] != found:
                raise WeightsError(
                    f"{self.place} is two exports in one: its card is of weights with sha256 "
                    f"{card['sha256'][:16]}, and {_OWN} has {found[:16]}. Export it again."
                )
            plain = spec.without_weights()
            own = replace(plain, mean=tuple(card["mean"]), std=tuple(card["std"]))
        else:
            own = self._of_timm()
        return replace(own, mean=self.mean or own.mean, std=self.std or own.std)

    def _of_timm(self) -> TimmModel:
        facts = self._facts
        asked = {**(facts.get("model_args") or {})}
        pooling = asked.get("global_pool", facts.get("global_pool"))
        if pooling not in (None, "avg", "token", "map"):
            raise WeightsError(
                f"{self.place} is {facts['architecture']} with a pooling of its own ({pooling}), "
                "which has other weights; models are built with their usual one."
            )
        options = {name: value for name, value in asked.items() if name not in _KNOWN}
        shown = facts.get("pretrained_cfg", facts)
        mean, std = (tuple(shown[k]) if k in shown else None for k in ("mean", "std"))
        try:
            return TimmModel(
                variant=str(facts["architecture"]), mean=mean, std=std, options=options
            )
        except SpecError as error:
            raise WeightsError(f"{self.place}: {error}") from error

    @property
    def _facts(self) -> dict[str, Any]:
        path = self.folder / "config.json"
        try:
            facts: dict[str, Any] = read_object(path)
            str(facts["architecture"])
        except (OSError, ValueError, KeyError, MessageError) as error:
            raise WeightsError(f"{path} is no configuration of timm: {error!r}.") from error
        return facts

    # As other models have it

    def weights_path(self) -> Path:
        own = self.folder / _OWN
        return own if own.is_file() else self.folder / _TIMM

    def without_weights(self) -> ModelSpec:
        return self.network

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return self.network.architecture(num_classes, in_chans)

    def normalisation(self) -> Statistics:
        own, usual = self.network, self.network.normalisation()
        return own.mean or usual[0], own.std or usual[1]

    def evaluation(self, size: int) -> Mapping[str, Any]:
        if (self.folder / _OWN).is_file():
            shown = read_card(self.folder / _OWN).get("input", {})
            names = ("crop_pct", "interpolation", "crop_mode", "fill")
            return {name: shown[name] for name in names if name in shown}
        return shown_by(self._facts.get("pretrained_cfg", self._facts), size)


def _resolved(place: str, client: "MlflowClient") -> str:
    """Where a model of the store lies: `download_artifacts` looks in the default one for these."""
    while place.startswith("models:/"):
        name, _, version = place.removeprefix("models:/").rpartition("/")
        if name:
            place = client.get_model_version_download_uri(name, version)
        else:
            place = client.get_logged_model(version).artifact_location
    return place


def _checked(folder: Path, place: str) -> Path:
    """The folder, if a network lies in it."""
    for weights, facts in ((_OWN, "student.json"), (_TIMM, "config.json")):
        if (folder / weights).is_file() and (folder / facts).is_file():
            return folder
    raise WeightsError(
        f"There is no saved network at {place}: neither {_OWN} with student.json, as kdlab "
        f"exports it, nor {_TIMM} with config.json, as timm and hubs have it."
    )


def _from_hub(place: str, target: Path) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name, _, revision = place.removeprefix(_HUB).partition("@")
    try:
        for file in (_TIMM, "config.json"):
            hf_hub_download(name, file, revision=revision or None, local_dir=target)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise WeightsError(
            f"The model hub did not give {place}: {short(str(error), _SAID)} Without a way to "
            "it, copy model.safetensors and config.json into a folder, and name that."
        ) from error
