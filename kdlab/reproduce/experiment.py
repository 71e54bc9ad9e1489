"""Measured by an experiment: accuracies of its trainings, over its seeds."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdlab.config import Fault, register
from kdlab.reproduce.measurement import (
    Measured,
    MeasurementSpec,
    Points,
    Say,
    missing_images,
    roots_of,
)
from kdlab.run.experiment import load
from kdlab.run.handle import Run
from kdlab.train.events import select


@register("reproduce/experiment")
@dataclass(frozen=True, kw_only=True)
class Trained(MeasurementSpec):
    """A row takes `top1/SOURCE`, `best/`, `top5/`, `ece/`, or `top1/SOURCE-OTHER`.

    top1 and top5 are of the last epoch on test images, best of the epoch that was best on
    validation, ece the calibration error; a difference is taken seed by seed.

    experiment: on the images of `images`.
    without_images: an experiment on embedded data, where there are none.
    images: class folders or zips, with a folder test/ among them.
    curves: draw top-1 on validation against epochs.
    pictures: of the run's folder that belong to the result.
    """

    experiment: str
    without_images: str
    images: tuple[str, ...] = ()
    overrides: Mapping[str, Any] | None = None
    curves: bool = False
    pictures: tuple[str, ...] = ()

    def cross_faults(self) -> Iterator[Fault]:
        yield from missing_images(self.images)

    def build(self) -> "Trained":
        return self

    def measure(self, folder: Path, say: Say) -> Measured:
        experiment = load(*self._named(), dict(self.overrides or {}))
        run = experiment.start(say)
        said = _Said(say)
        result = run.wait(said.see).result
        rows = result["runs"]
        seeds = sorted({row["seed"] for row in rows})
        values: dict[str, list[float]] = {}
        for row in sorted(rows, key=lambda row: row["seed"]):
            source = row["source"]
            for name, key in _OF_A_ROW.items():
                if row[key] is not None:
                    values.setdefault(f"{name}/{source}", []).append(float(row[key]))
        if result["teacher_top1"] is not None:
            values["top1/teacher"] = [float(result["teacher_top1"])]
        say("looking at calibration on test images")
        for member, error in run.examine(most=10_000).calibration().items():
            values.setdefault(f"ece/{member.split('/')[0]}", []).append(error)
        for name in self.pictures:
            shutil.copyfile(run.path / name, folder / name)
        return Measured(
            values=values | _differences(values),
            pictures=[folder / name for name in self.pictures],
            curves=_curves(run) if self.curves else {},
            facts={"seeds": seeds, "spec_hash": experiment.hash, "run": run.id},
        )

    def _named(self) -> tuple[Any, ...]:
        if not self.images:
            return (self.without_images,)
        known = load(self.experiment).resolved
        data = {"data": self._of_images(known["data"])}
        if known.get("teacher") is not None:
            data["teacher.data"] = self._of_images(known["teacher"]["data"])
        return self.experiment, data

    def _of_images(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The same part of other data, with the same augmentation."""
        kept = ("augment", "train_samples", "test_samples", "validation_share", "size")
        told = {key: own[key] for key in kept if key in own}
        return {"type": "data/image_folder", "root": roots_of(self.images)} | told


_OF_A_ROW = {
    "top1": "student_top1",
    "best": "student_top1_best",
    "top5": "student_top5",
    "global": "global_top1",
    "samples_per_second": "samples_per_second",
    "lost": "samples_lost",
    "repeated": "samples_repeated",
}


def _differences(values: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """`top1/served-none`: of each seed."""
    names = [n.removeprefix("top1/") for n in values if n.startswith("top1/")]
    found = {}
    for one in names:
        for other in names:
            a, b = values[f"top1/{one}"], values[f"top1/{other}"]
            if one != other and len(a) == len(b):
                found[f"top1/{one}-{other}"] = [x - y for x, y in zip(a, b, strict=True)]
    return found


def _curves(run: Run) -> dict[str, dict[str, Points]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for event in select(run.folder.events, "epoch_done"):
        member = event["member"]
        if member.endswith("/seed0") and event.get("validation_top1") is not None:
            point = float(event["epoch"]), float(event["validation_top1"])
            curves.setdefault(member.split("/")[0], []).append(point)
    return {"top-1 on validation, %": dict(curves)}


class _Said:
    """The epochs of a run, a line each."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def see(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "epoch_done":
            top1 = event.get("validation_top1")
            shown = "" if top1 is None else f", top-1 on validation {top1:.2f} %"
            self._say(f"{event['member']}: epoch {event['epoch']}{shown}")
