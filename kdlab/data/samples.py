"""The training samples of one run: a data set and the plan that cuts it into batches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.data.plan import Plan


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """Implements `soft_labels.source.Samples`; the same in trainer, reader and teacher."""

    data: ImageData
    plan: Plan
    spec: dict[str, Any]  # of the data, so that another process can load it

    @property
    def classes(self) -> int:
        return len(self.data.classes)

    @property
    def augmented(self) -> bool:
        return self.data.augment.active

    def batches(self, epoch: int) -> list[NDArray[Any]]:
        return self.plan.epoch(epoch)

    def train_ids(self) -> NDArray[Any]:
        return np.sort(self.plan.ids)

    def views(self, ids: NDArray[Any], epoch: int) -> NDArray[Any]:
        return self.data.views(ids, epoch)

    def labels(self, ids: NDArray[Any]) -> NDArray[Any]:
        return self.data.labels[ids]

    def view_key(self) -> dict[str, Any]:
        return {"data": self.data.digest, "augment": self.data.augment.fingerprint()}

    def describe(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "data": self.spec,
            "plan": {"batch": plan.batch, "seed": plan.seed, "epochs": plan.epochs},
            "view_key": self.view_key(),
        }


def planned(
    data: ImageData, spec: dict[str, Any], *, batch: int, seed: int, epochs: int
) -> PlannedSamples:
    return PlannedSamples(data, Plan(data.train, batch, seed, epochs), spec)
