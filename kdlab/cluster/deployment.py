"""Deployments: what teachers serve (model, weights, data), and the proof that they do."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kdlab.cluster.teachers.probe import DataIdentity, data_difference, identity_of
from kdlab.codec import from_builtins, to_builtins
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec, ImageData
from kdlab.errors import TeacherRefused
from kdlab.models.ensemble import Combination
from kdlab.models.model import ModelSpec

EngineChoice = Literal["eager", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedModel:
    """A model: its spec, and the path of its weights (fetched where it cannot be read)."""

    model: Mapping[str, object]
    weights: str = ""
    sha256: str
    weight: float  # of its probabilities in an ensemble's mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A deployment, sent between processes as JSON.

    members: the models; more than one is an ensemble, whose answer is the mean of their
        probabilities by weight.
    batch: samples of a student's batch, at which a teacher starts to measure.
    identity: of the data and its views (probe.identity_of); a teacher with other data is
        refused, or served by value.
    by_reference: teachers must be able to load the data; `or_value`: send pixels to those
        that cannot.
    reference: expected logits of the probe images; empty needs no proof.
    engine: how teachers compute: `eager` is plain PyTorch; with `auto` each measures what its
        machine has, bf16 too, and takes the fastest that agrees (models/engines).
    share_answers: teachers cache their answers for others that ask for the same views.
    combination: of several members; null is the mean of their probabilities by their weights.
    components: {name: {"source": text, "sha256": hash}} of components from notebook cells.
    """

    members: tuple[DeployedModel, ...]
    teacher: str  # fingerprint of network and weights: kept soft labels belong to it
    num_classes: int
    shape: tuple[int, int, int]
    batch: int
    data: Mapping[str, object]
    identity: DataIdentity
    by_reference: bool
    components: dict[str, dict[str, str]]
    reference: tuple[tuple[float, ...], ...] = field(default=())
    combination: Combination | None = None
    or_value: bool = False
    engine: EngineChoice = "eager"
    share_answers: bool = False

    @property
    def fingerprint(self) -> str:
        """Hash of all that an answer depends on: models, weights, data, views.

        Students of any batch, loss or inputs share a pool with the same fingerprint.
        """
        counted = {
            # Without the paths of the weights.
            "members": [
                {"model": m.model, "sha256": m.sha256, "weight": m.weight}
                for m in self.members
            ],
            "num_classes": self.num_classes,
            "shape": self.shape,
            # `made_by` is for people.
            "identity": to_builtins(replace(self.identity, made_by="")),
            "components": self._used_components(),
        }
        # Deployments from before engines and combinations keep their fingerprint.
        if self.engine != "eager":
            counted["engine"] = self.engine
        if self.combination is not None:
            counted["combination"] = to_builtins(self.combination)
        text = json.dumps(counted, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _used_components(self) -> dict[str, str]:
        """Hashes of the notebook components that a model or the data set uses."""
        named = json.dumps([[m.model for m in self.members], self.data])
        return {
            name: facts["sha256"]
            for name, facts in sorted(self.components.items())
            if json.dumps(name) in named
        }

    def computed_by(self, engine: EngineChoice) -> "Deployment":
        """A copy for another engine; its fingerprint keeps stored soft labels of engines apart."""
        if engine == self.engine:
            return self
        return replace(self, engine=engine, teacher=f"{self.teacher}+{engine}")

    def to_json(self) -> dict[str, object]:
        return {**to_builtins(self), "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Deployment":
        # Dask turns lists into tuples.
        return from_builtins(cls, json.loads(json.dumps(data)))

    def model_specs(self) -> list[ModelSpec]:
        return [
            construct(ModelSpec, from_dict(m.model, "the teacher's model"))
            for m in self.members
        ]

    def describe(self) -> str:
        """Names and hashes of the models, for messages."""
        return " + ".join(f"{m.model['type']} ({m.sha256[:16]})" for m in self.members)

    def load_data(self) -> ImageData:
        spec = construct(DataSpec, from_dict(self.data, "the teacher's data"))
        data = spec.load(verify=True)
        difference = data_difference(identity_of(data), self.identity)
        if difference:
            raise TeacherRefused(
                f"This machine has other data than the student under the name {data.name}: "
                f"{difference}. Its soft labels would be those of other images. Bring the "
                "same files here, or send inputs by value: soft_labels.inputs=value_uint8 "
                "for all teachers, soft_labels.inputs=auto for those without the data."
            )
        return data
