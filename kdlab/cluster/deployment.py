"""What a teacher must know to serve: model, weights, data, and how to prove it is right."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec, ImageData
from kdlab.errors import TeacherRefused
from kdlab.models.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Plain values only: it crosses processes as JSON.

    probe: hash of the views of the first samples in epoch 0; a teacher that makes other
        views from the same references is refused.
    components: {name: {"source": text, "sha256": hash}} of components that were defined
        in a notebook cell.
    """

    model: dict[str, Any]
    weights: str  # path; fetched through the coordinator where it cannot be read
    sha256: str
    num_classes: int
    shape: tuple[int, int, int]
    batch: int
    data: dict[str, Any]
    probe: str
    by_reference: bool  # the teacher must be able to load the data
    components: dict[str, dict[str, str]]

    @property
    def fingerprint(self) -> str:
        """Of all that the answers depend on: model, weights, data, views."""
        counted = {k: v for k, v in asdict(self).items() if k != "weights"}
        text = json.dumps(counted, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Deployment":
        plain = json.loads(json.dumps(data))  # Dask makes tuples of lists on the way
        values = {k: v for k, v in plain.items() if k != "fingerprint"}
        return cls(**values | {"shape": tuple(plain["shape"])})

    def model_spec(self) -> ModelSpec:
        return construct(ModelSpec, from_dict(self.model, "the teacher's model"))

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


def probe_of(data: ImageData) -> str:
    """16 hex digits of the first views; equal where references mean the same bytes."""
    ids = data.train[:16]
    views = np.ascontiguousarray(data.views(ids, 0))
    return hashlib.sha256(views.tobytes()).hexdigest()[:16]
