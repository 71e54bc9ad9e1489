"""How good all models are at a communication: errors as EC-DNN counts them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.losses.local import log_loss
from kdlab.methods.ensemble.model_workers import RoundReport, looked_at
from kdlab.papers.ec_dnn import metrics
from kdlab.papers.ec_dnn.parallel import Combining


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundErrors:
    """Errors in percent on test images, at a communication.

    Attributes:
        round: its number.
        iterations: local ones of a worker until then.
        parallel_s: overall time on machines side by side (4.3).
        locals: error of each local model, before anything is combined.
        global_: of the global model.
        compressed: of each local model after its reset; empty without one.
        chosen: error of the local model with the smallest training loss (_L).
        validation_locals, validation_global: the same on validation images.
        local_losses, global_loss: mean cross entropy on test images; by Eq. 3 an ensemble's
            is never above the mean of its models'.
        models: K' workers.
    """

    round: int
    iterations: int
    parallel_s: float
    locals: list[float]
    global_: float
    compressed: list[float]
    chosen: float
    validation_locals: list[float]
    validation_global: float
    local_losses: list[float]
    global_loss: float
    models: list[int]

    @property
    def diff_lg(self) -> float:
        """Eq. 7."""
        return metrics.better_than_locals(self.locals, self.global_)

    @property
    def diff_lc(self) -> float | None:
        """Eq. 8; None where nothing was compressed."""
        if len(self.compressed) != len(self.locals):
            return None
        return metrics.compression_gain(self.locals, self.compressed)


class Looks:
    """From what the workers wrote of the images that are looked at.

    Args:
        folder: of the member.
        data: with these images.
        combining: how the global model is made.
    """

    def __init__(self, folder: Path, data: ImageData, combining: Combining) -> None:
        self.folder, self.data, self.combining = folder, data, combining
        self._labels = data.labels[looked_at(data)]

    def path(self, number: int, worker: int, what: str) -> Path:
        """Where a worker is to write what its model says."""
        return self.folder / "rounds" / f"{number:05d}" / f"worker-{worker}.{what}.npy"

    def look(
        self,
        number: int,
        members: Sequence[int],
        trained: Mapping[int, RoundReport],
        combined: Mapping[int, RoundReport],
        *,
        iterations: int,
        parallel_s: float,
    ) -> RoundErrors:
        """Errors of all models; what the workers wrote is gone then.

        Args:
            number: of the round.
            members: workers whose models were combined.
            trained: what the members reported.
            combined: the same after the reset.
            iterations: local ones until then.
            parallel_s: overall time until then.
        """
        answers = {k: self._said(number, k, "train") for k in members}
        after = {k: self._said(number, k, "combine") for k in combined}
        if self.combining == "model_average" and after:
            whole = after[min(after)]
        else:
            whole = np.mean(list(answers.values()), axis=0)
        compressed = after if self.combining == "ensemble" else {}
        # The running mean of its steps; in the end, that of its whole local data.
        final = {
            k: did.done.loss if did.train_loss is None else did.train_loss
            for k, did in trained.items()
        }
        chosen = min(final, key=lambda k: (final[k], k))
        local = {k: self._errors(p) for k, p in answers.items()}
        both = self._errors(whole)
        found = RoundErrors(
            round=number,
            iterations=iterations,
            parallel_s=parallel_s,
            locals=[test for _, test in local.values()],
            global_=both[1],
            compressed=[self._errors(p)[1] for p in compressed.values()],
            chosen=local[chosen][1] if chosen in local else both[1],
            validation_locals=[validation for validation, _ in local.values()],
            validation_global=both[0],
            local_losses=[self._loss(p) for p in answers.values()],
            global_loss=self._loss(whole),
            models=list(members),
        )
        for path in (self.folder / "rounds" / f"{number:05d}").glob("*.npy"):
            path.unlink()
        return found

    def _said(self, number: int, worker: int, what: str) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.load(self.path(number, worker, what))
        return found

    def _errors(self, probabilities: NDArray[np.float32]) -> tuple[float, float]:
        """(validation, test) in percent."""
        wrong = probabilities.argmax(1) != self._labels
        count = len(self.data.validation)
        parts = wrong[:count], wrong[count:]
        validation, test = (100.0 * p.mean() if len(p) else float("nan") for p in parts)
        return float(validation), float(test)

    def _loss(self, probabilities: NDArray[np.float32]) -> float:
        count = len(self.data.validation)
        answers = torch.from_numpy(np.asarray(probabilities[count:]))
        return log_loss(answers, torch.from_numpy(self._labels[count:]))
