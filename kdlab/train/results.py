"""Validation, test and export of a student's weights, of which the best are kept.

Shared by all training loops; only the master rank has one.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load_file

from kdlab.data.images import ImageData
from kdlab.models.model import ModelSpec, Normalised, export, parameters
from kdlab.train.evaluate import Accuracy, evaluate
from kdlab.train.kept import RevertPoint
from kdlab.train.lineage import Lineage
from kdlab.train.position import Position
from kdlab.train.result import MemberResult

_KEEP_BEST = 4  # best weights kept during training: more than the checkpoints kept


@dataclass(slots=True)
class Results:
    """Evaluation and export of one student."""

    model: Normalised  # the student, as it is trained
    spec: ModelSpec  # of it, for the files that are written
    data: ImageData  # its images
    folder: Path  # of the member
    batch: int  # of evaluation, in samples
    alive: Callable[[], None] = lambda: None  # called between batches
    last_validation: float = float("nan")

    def validate(self, position: Position, *, is_last: bool) -> Accuracy:
        """Validate at the end of an epoch, before it is counted; save the best weights."""
        accuracy = evaluate(
            self.model, self.data, self.data.validation, self.batch, self.alive
        )
        self.last_validation = accuracy.top1
        if not accuracy.samples and is_last:  # no validation images: last is best
            self._keep_best(position, float("nan"))
        elif accuracy.top1 > position.best_top1:
            self._keep_best(position, accuracy.top1)
        return accuracy

    def _keep_best(self, position: Position, top1: float) -> None:
        position.best_top1, position.best_epoch = top1, position.epoch + 1
        path = self._best_path(position.best_epoch)
        epoch = position.best_epoch
        export(self.model, self.spec, path, self.data, epoch=epoch, validation_top1=top1)
        every = sorted(self.folder.glob("best_*.safetensors"))
        number = every.index(path) + 1
        to_revert = RevertPoint.read(self.folder / "checkpoints").best
        # Beyond the newest, or of epochs that were undone.
        for old in [*every[: max(0, number - _KEEP_BEST)], *every[number:]]:
            if old != self._best_path(to_revert):
                old.unlink()
                old.with_suffix(".json").unlink(missing_ok=True)

    def _best_path(self, epoch: int) -> Path:
        """Return the path by epoch, so that a resume from an earlier step finds its own best."""
        return self.folder / f"best_{epoch:05d}.safetensors"

    def finish(
        self, position: Position, lineage: Lineage, figures: dict[str, float]
    ) -> MemberResult:
        """Test and export the last and the best weights."""
        last = self._test(self.model)
        best = last
        best_path = self.folder / "best.safetensors"
        for suffix in (".safetensors", ".json"):
            source = self._best_path(position.best_epoch).with_suffix(suffix)
            shutil.copyfile(source, best_path.with_suffix(suffix))
        path, epoch = self.folder / "student.safetensors", position.epoch
        export(self.model, self.spec, path, self.data, epoch=epoch, test_top1=last.top1)
        if position.best_epoch != position.epoch:
            net = self.model.net
            newest = {name: value.clone() for name, value in net.state_dict().items()}
            net.load_state_dict(load_file(best_path))
            best = self._test(self.model)
            net.load_state_dict(newest)
        return MemberResult(
            last=last,
            best=best,
            validation_last=self.last_validation,
            validation_best=position.best_top1,
            best_epoch=position.best_epoch,
            epochs=position.epoch,
            steps=position.step,
            samples_per_second=lineage.seen / max(1e-9, position.train_seconds),
            train_seconds=position.train_seconds,
            figures=figures,
            model_path=str(path),
            best_path=str(best_path),
            parameters=parameters(self.model),
            **asdict(lineage.totals()),
        )

    def _test(self, model: Normalised) -> Accuracy:
        return evaluate(model, self.data, self.data.test, self.batch, self.alive)
