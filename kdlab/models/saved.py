"""Trained networks from a folder, a model hub, or MLflow.

A network is downloaded to this machine once, so all processes of all runs have the same; a pool's
teachers get its weights from the pool, not from the hub or MLflow.
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
from kdlab.config.kept import key_of, load_or_create
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
_ERROR_LEN = 300  # characters of other libraries' errors
# Arguments set elsewhere; a pooling other than the network's default has other weights.
_KNOWN = {"in_chans", "num_classes", "global_pool"}
# Weights in a folder: of kdlab's exports, or of timm and hubs.
_KDLAB, _TIMM = "student.safetensors", "model.safetensors"


@register("models/saved")
@dataclass(frozen=True, kw_only=True)
class SavedModel(ModelSpec):
    """A trained network whose architecture is in its files; it is not trained further.

    place: a folder (of `kdlab export`, or with model.safetensors beside config.json as timm
        and hubs have it); `hf-hub:OWNER/NAME@REVISION`; or a model that kdlab logged in
        MLflow: `models:/NAME/VERSION`, `models:/m-ID`, `runs:/ID/PATH`.
    store: address of the MLflow server; null takes MLFLOW_TRACKING_URI.
    """

    place: str
    store: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", self.place)  # so it is not trained

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
        """Folder of its files on this machine; downloads them.

        Raises:
            WeightsError: they are not at `place`, or cannot be fetched.
        """
        if not self.place.startswith((_HUB, *_OF_MLFLOW)):
            return _require_network(Path(self.place).expanduser(), self.place)
        server = credentials.masked(self._server())
        path = home() / "models" / key_of(f"{server} {self.place}")
        return load_or_create(
            path, lambda: path if path.is_dir() else None, partial(self._fetch, path)
        )

    def _fetch(self, folder: Path) -> Path:
        fresh = folder.with_suffix(".part")
        shutil.rmtree(fresh, ignore_errors=True)
        if self.place.startswith(_HUB):
            _from_hub(self.place, fresh)
        else:
            self._from_mlflow(fresh)
        return _require_network(fresh, self.place).rename(folder)

    def _server(self) -> str:
        """Address of the server: two servers may have different models of one name."""
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
            place = _artifact_uri(self.place, MlflowClient(tracking_uri=store))
            path = download_artifacts(place, dst_path=str(target), tracking_uri=store)
        except (MlflowException, OSError) as error:
            where = credentials.masked(self.store or "MLFLOW_TRACKING_URI")
            raise WeightsError(
                f"{self.place} could not be downloaded from MLflow ({where}): "
                f"{short(credentials.masked(str(error)), _ERROR_LEN)}"
            ) from error
        for file in Path(path).rglob("student.*"):
            shutil.move(file, target / file.name)

    @cached_property
    def network(self) -> ModelSpec:
        """Spec of the network without its weights.

        Raises:
            WeightsError: its files do not describe a network.
        """
        if (path := self.folder / _KDLAB).is_file():
            spec, card = spec_of(path), read_card(path)
            if isinstance(spec, SavedModel):
                raise WeightsError(
                    f"{self.place} names another place ({spec.place}) instead of a network. "
                    "Export it again with this version of kdlab."
                )
            sha256 = file_sha256(path)
            if card["sha256"] != sha256:
                raise WeightsError(
                    f"{self.place} mixes two exports: its card is of weights with sha256 "
                    f"{card['sha256'][:16]}, and {_KDLAB} has {sha256[:16]}. Export it again."
                )
            plain = spec.without_weights()
            network = replace(plain, mean=tuple(card["mean"]), std=tuple(card["std"]))
        else:
            network = self._of_timm()
        return replace(network, mean=self.mean or network.mean, std=self.std or network.std)

    def _of_timm(self) -> TimmModel:
        facts = self._facts
        arguments = {**(facts.get("model_args") or {})}
        pooling = arguments.get("global_pool", facts.get("global_pool"))
        if pooling not in (None, "avg", "token", "map"):
            raise WeightsError(
                f"{self.place} is {facts['architecture']} with another pooling ({pooling}), "
                "which has other weights; kdlab builds models with their default pooling."
            )
        options = {name: value for name, value in arguments.items() if name not in _KNOWN}
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

    # Overrides of ModelSpec

    def weights_path(self) -> Path:
        exported = self.folder / _KDLAB
        return exported if exported.is_file() else self.folder / _TIMM

    def without_weights(self) -> ModelSpec:
        return self.network

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return self.network.architecture(num_classes, in_chans)

    def normalisation(self) -> Statistics:
        network, default = self.network, self.network.normalisation()
        return network.mean or default[0], network.std or default[1]

    def evaluation(self, size: int) -> Mapping[str, Any]:
        if (self.folder / _KDLAB).is_file():
            shown = read_card(self.folder / _KDLAB).get("input", {})
            names = ("crop_pct", "interpolation", "crop_mode", "fill")
            return {name: shown[name] for name in names if name in shown}
        return shown_by(self._facts.get("pretrained_cfg", self._facts), size)


def _artifact_uri(place: str, client: "MlflowClient") -> str:
    """Resolve a model of this store; `download_artifacts` would look in the default store."""
    while place.startswith("models:/"):
        name, _, version = place.removeprefix("models:/").rpartition("/")
        if name:
            place = client.get_model_version_download_uri(name, version)
        else:
            place = client.get_logged_model(version).artifact_location
    return place


def _require_network(folder: Path, place: str) -> Path:
    """Return the folder, or raise WeightsError if it has no network."""
    for weights, facts in ((_KDLAB, "student.json"), (_TIMM, "config.json")):
        if (folder / weights).is_file() and (folder / facts).is_file():
            return folder
    raise WeightsError(
        f"There is no saved network at {place}: neither {_KDLAB} with student.json (kdlab export) "
        f"nor {_TIMM} with config.json (timm and hubs)."
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
            f"{place} could not be downloaded: {short(str(error), _ERROR_LEN)} Without access to "
            "the hub, copy model.safetensors and config.json into a folder, and name that."
        ) from error
