"""What a teacher must know to serve: model, weights, data, and how to prove it is right."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kdlab.cluster.probe import probe_of
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
    probe: hash of the views of the first samples in epoch 0; a teacher that makes other
        views from the same references is refused.
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
    probe: str
    by_reference: bool  # the teacher must be able to load the data
    components: dict[str, dict[str, str]]
    reference: tuple[tuple[float, ...], ...] = field(default=())
    answers: Literal["mean", "each"] = "mean"

    @property
    def fingerprint(self) -> str:
        """Of all that the answers depend on: models, weights, data, views."""
        counted = asdict(self) | {"members": [_place_free(m) for m in self.members]}
        del counted["reference"]  # it follows from the rest, up to rounding
        text = json.dumps(counted, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

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
        data = spec.load()
        found = probe_of(data)
        if found != self.probe:
            raise TeacherRefused(
                f"This machine makes other views of {data.name} than the student (probe "
                f"{found}, expected {self.probe}): another copy of the data, or another "
                "version of kdlab, numpy or Pillow. Send inputs by value instead: "
                "soft_labels.inputs=value_uint8"
            )
        return data


def _place_free(member: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in member.items() if k != "weights"}
