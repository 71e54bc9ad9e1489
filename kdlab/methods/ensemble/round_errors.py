"""Errors of all models at a communication, as EC-DNN measures them (section 5.3)."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kdlab.data.images import ImageData
from kdlab.losses.local import log_loss
from kdlab.methods.ensemble.model_workers import RoundReport, evaluation_ids
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.report.round_errors import CostTotals, RoundErrors


@dataclass(slots=True)
class RoundReports:
    """Reports of the workers on a round that is not closed."""

    trained: dict[int, RoundReport] = field(default_factory=dict)
    combined: dict[int, RoundReport] = field(default_factory=dict)
    members: tuple[int, ...] = ()

    def loss(self, worker: int) -> float:
        """Return the mean loss of its steps; after the last round, that of its local data."""
        for report in (self.combined.get(worker), self.trained[worker]):
            if report is not None and report.train_loss is not None:
                return report.train_loss
        return self.trained[worker].done.loss


class RoundEvaluator:
    """Errors of a round, from the outputs that the workers wrote."""

    def __init__(self, folder: Path, data: ImageData, combining: Combining) -> None:
        self.folder, self.data, self.combining = folder, data, combining
        self._labels = data.labels[evaluation_ids(data)]

    def path(self, number: int, worker: int, what: str) -> Path:
        """Return where a worker writes the outputs of its model."""
        return self.folder / "rounds" / f"{number:05d}" / f"worker-{worker}.{what}.npy"

    def evaluate(
        self, number: int, reports: RoundReports, account: CostTotals
    ) -> RoundErrors:
        """Evaluate all models at the end of a round."""
        before = {k: np.load(self.path(number, k, "train")) for k in reports.members}
        after = {k: np.load(self.path(number, k, "combine")) for k in reports.combined}
        if self.combining in ("model_average", "all_models") and after:
            global_outputs = after[min(after)]
        elif self.combining == "centre":
            global_outputs = list(after.values())[-1]  # of the last exchange in this round
        else:
            global_outputs = np.mean(list(before.values()), axis=0)
        compressed = {}
        if self.combining == "ensemble":
            compressed = {k: self._errors(p)[1] for k, p in after.items()}
        chosen = min(reports.trained, key=lambda k: (reports.loss(k), k))
        local = {k: self._errors(p) for k, p in before.items()}
        validation_global, global_ = self._errors(global_outputs)
        final = {k: test for k, (_, test) in local.items()} | compressed
        return RoundErrors(
            round=number,
            iterations=account.iterations,
            parallel_s=account.parallel_s,
            locals=[test for _, test in local.values()],
            global_=global_,
            compressed=list(compressed.values()),
            chosen=final.get(chosen, global_),
            validation_locals=[validation for validation, _ in local.values()],
            validation_global=validation_global,
            local_losses=[self._loss(p) for p in before.values()],
            global_loss=self._loss(global_outputs),
            models=list(before),
        )

    def clear(self, number: int) -> None:
        """Delete the outputs that were written for a round."""
        folder = self.folder / "rounds" / f"{number:05d}"
        for path in folder.glob("*.npy"):
            path.unlink()

    def _errors(self, probabilities: NDArray[np.float32]) -> tuple[float, float]:
        """Return the errors on validation and test images, in percent."""
        wrong = probabilities.argmax(1) != self._labels
        count = len(self.data.validation)
        parts = wrong[:count], wrong[count:]
        validation, test = (100.0 * p.mean() if len(p) else float("nan") for p in parts)
        return float(validation), float(test)

    def _loss(self, probabilities: NDArray[np.float32]) -> float:
        count = len(self.data.validation)
        answers = torch.from_numpy(np.asarray(probabilities[count:]))
        return log_loss(answers, torch.from_numpy(self._labels[count:]))
