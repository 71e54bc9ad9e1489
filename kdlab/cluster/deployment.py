"""What a teacher must know to serve: model, weights, data, and how to prove it is right."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kdlab.cluster.teachers.probe import identity_of, other_data
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec, ImageData
from kdlab.errors import TeacherRefused
from kdlab.models.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Plain values only: it crosses processes as JSON.

    members: the models; more than one is an ensemble, whose answer is the mean of their
        probabilities by weight. Each has its spec, the path of its weights (fetched
        through the coordinator where it cannot be read), their sha256 and its weight.
    batch: samples of a student's batch: where a teacher's measuring begins.
    identity: of the data and its views (probe.identity_of); a teacher with others is
        refused, or served by value.
    by_reference: teachers must be able to load the data; `or_value`: those that cannot get
        pixels instead.
    reference: the right logits for the probe images; empty asks for no proof.
    answers: of several members, the `mean` of their probabilities (as logits), or the
        logits of `each` side by side; then num_classes is that of all together.
    components: {name: {"source": text, "sha256": hash}} of components that were defined
        in a notebook cell.
    """

    members: tuple[dict[str, Any], ...]  # {"model", "weights", "sha256", "weight"}
    teacher: str  # fingerprint of the weights alone: kept soft labels belong to it
    num_classes: int
    shape: tuple[int, int, int]
    batch: int
    data: dict[str, Any]
    identity: dict[str, Any]
    by_reference: bool
    components: dict[str, dict[str, str]]
    reference: tuple[tuple[float, ...], ...] = field(default=())
    answers: Literal["mean", "each"] = "mean"
    or_value: bool = False

    @property
    def fingerprint(self) -> str:
        """Hash of all that an answer depends on: models, weights, data, views.

        Students of any batch, loss or way to send inputs share a pool that serves the same.
        """
        counted = {
            "members": [_place_free(m) for m in self.members],
            "num_classes": self.num_classes,
            "shape": self.shape,
            "answers": self.answers,
            "identity": self.identity,
            "components": self._used_components(),
        }
        text = json.dumps(counted, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _used_components(self) -> dict[str, str]:
        """Hashes of those from notebooks that a model or the data set is made with."""
        named = json.dumps([[m["model"] for m in self.members], self.data])
        return {
            name: facts["sha256"]
            for name, facts in sorted(self.components.items())
            if json.dumps(name) in named
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Deployment":
        plain = json.loads(json.dumps(data))  # Dask makes tuples of lists on the way
        values = {k: v for k, v in plain.items() if k != "fingerprint"}
        values["shape"] = tuple(plain["shape"])
        values["members"] = tuple(plain["members"])
        values["reference"] = tuple(map(tuple, plain["reference"]))
        return cls(**values)

    def model_specs(self) -> list[ModelSpec]:
        return [
            construct(ModelSpec, from_dict(m["model"], "the teacher's model"))
            for m in self.members
        ]

    def describe(self) -> str:
        """For people: names and hashes."""
        return " + ".join(
            f"{m['model']['type']} ({m['sha256'][:16]})" for m in self.members
        )

    def load_data(self) -> ImageData:
        spec = construct(DataSpec, from_dict(self.data, "the teacher's data"))
        data = spec.load(verify=True)
        difference = other_data(identity_of(data), self.identity)
        if difference:
            raise TeacherRefused(
                f"This machine has other data than the student under the name {data.name}: "
                f"{difference}. Its soft labels would be those of other images. Bring the "
                "same files here, or send inputs by value: soft_labels.inputs=value_uint8 "
                "for all teachers, soft_labels.inputs=auto for those without the data."
            )
        return data


def _place_free(member: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in member.items() if k != "weights"}
