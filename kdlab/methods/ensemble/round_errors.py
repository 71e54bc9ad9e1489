"""How good all models are at a communication: errors as EC-DNN counts them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.losses.local import log_loss
from kdlab.methods.ensemble.model_workers import RoundReport, looked_at
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.report.round_errors import CostTotals, RoundErrors


@dataclass(slots=True)
class RoundReports:
    """What is known of the round under way."""

    trained: dict[int, RoundReport] = field(default_factory=dict)
    combined: dict[int, RoundReport] = field(default_factory=dict)
    members: tuple[int, ...] = ()

    def loss(self, worker: int) -> float:
        """The running mean of its steps; in the end, that of its whole local data."""
        for did in (self.combined.get(worker), self.trained[worker]):
            if did is not None and did.train_loss is not None:
                return did.train_loss
        return self.trained[worker].done.loss


class RoundEvaluator:
    """From what the workers wrote of the images that are looked at."""

    def __init__(self, folder: Path, data: ImageData, combining: Combining) -> None:
        self.folder, self.data, self.combining = folder, data, combining
        self._labels = data.labels[looked_at(data)]

    def path(self, number: int, worker: int, what: str) -> Path:
        """Where a worker is to write what its model says."""
        return self.folder / "rounds" / f"{number:05d}" / f"worker-{worker}.{what}.npy"

    def look(self, number: int, own: RoundReports, account: CostTotals) -> RoundErrors:
        """Errors of all models at the end of a round."""
        answers = {k: self._said(number, k, "train") for k in own.members}
        after = {k: self._said(number, k, "combine") for k in own.combined}
        if self.combining in ("model_average", "all_models") and after:
            whole = after[min(after)]
        elif self.combining == "centre":
            whole = list(after.values())[-1]  # of its last exchange in this round
        else:
            whole = np.mean(list(answers.values()), axis=0)
        losses = {k: own.loss(k) for k in own.trained}
        return self._found(number, account, losses, answers, after, whole)

    def clear(self, number: int) -> None:
        """Away with what was written of a round for looks."""
        folder = self.folder / "rounds" / f"{number:05d}"
        for path in folder.glob("*.npy"):
            path.unlink()

    def _found(
        self,
        number: int,
        account: CostTotals,
        losses: Mapping[int, float],
        answers: Mapping[int, NDArray[np.float32]],
        after: Mapping[int, NDArray[np.float32]],
        whole: NDArray[np.float32],
    ) -> RoundErrors:
        compressed = {}
        if self.combining == "ensemble":
            compressed = {k: self._errors(p)[1] for k, p in after.items()}
        chosen = min(losses, key=lambda k: (losses[k], k))
        local = {k: self._errors(p) for k, p in answers.items()}
        both = self._errors(whole)
        left = {k: test for k, (_, test) in local.items()} | compressed
        return RoundErrors(
            round=number,
            iterations=account.iterations,
            parallel_s=account.parallel_s,
            locals=[test for _, test in local.values()],
            global_=both[1],
            compressed=list(compressed.values()),
            chosen=left.get(chosen, both[1]),
            validation_locals=[validation for validation, _ in local.values()],
            validation_global=both[0],
            local_losses=[self._loss(p) for p in answers.values()],
            global_loss=self._loss(whole),
            models=list(answers),
        )

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
