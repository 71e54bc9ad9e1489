"""Rows that an experiment measures: accuracies of its trainings, over its seeds."""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from benchmarks.reproduce import candidates
from benchmarks.reproduce.latencies import student_latencies
from benchmarks.reproduce.measurement import (
    Measured,
    MeasurementSpec,
    missing_images,
    roots_of,
)
from benchmarks.reproduce.over_time import curves_of, shares_of_time
from benchmarks.reproduce.started_runs import run_of
from kdlab.config import Fault, register
from kdlab.errors import BadInput, ModelError
from kdlab.events.blockwise import BlocksChosen
from kdlab.events.event import Event
from kdlab.events.log import select
from kdlab.events.runs import MemberDone, RunStarted
from kdlab.events.training import EpochDone
from kdlab.experiment.spec import ExperimentSpec
from kdlab.models.exported import load_exported
from kdlab.report.chart import Points
from kdlab.report.costs import CostOfEach, times_smaller
from kdlab.report.figures import EmitLine
from kdlab.run.experiment import Experiment, load
from kdlab.run.handle.run import Run
from kdlab.run.outputs.examination import TEACHER
from kdlab.run.outputs.export_formats import StudentWithTeacher, ship
from kdlab.train.evaluate import evaluate
from kdlab.train.linear_probe import fit_last_layer


@register("reproduce/experiment")
@dataclass(frozen=True, kw_only=True)
class Trained(MeasurementSpec):
    """A row takes `top1/SOURCE`, `best/`, `top5/`, `ece/`, or `top1/SOURCE-OTHER`.

    `top1/` and `top5/` are of the last epoch on test images, `best/` is of the epoch that was best
    on validation, `ece/` is the calibration error; a difference is taken seed by seed. Of several
    local models, `global/` is top-1 of the global model, `seconds/` the time of their training in
    parallel, `exchanged_mb/` what each received from the others; `wall/` is the time of a training
    with all that belongs to it. `beyond/SOURCE-OTHER` is the difference of the means, less the sum
    of both standard deviations; `kept_pct/` is top1 in percent of the teacher's, `over_teacher/`
    the difference to it. With curves, `time/SOURCE-OTHER` is the share of OTHER's time after which
    SOURCE is as good on validation as OTHER at its end. Other numbers that a method reports have
    their own names, such as `faster_than_teacher/SOURCE`. `cost/student/latency_ms` and the like
    are costs of a model, `smaller/latency_ms` is the teacher's over the student's. `apart/onnx` is
    how far the scores of an export are from the student's on real images, `same_top1/onnx` the
    percentage of images with the same top-1.

    experiment: its config, which trains on `images`.
    without_images: config of an experiment on embedded data, where `images` is empty.
    images: class folders or zips, with a folder test/ among them.
    curves: draw top-1 on validation over seconds.
    pictures: names of pictures in the run's folder that belong to the result.
    exports: formats that the last student is exported to and checked in.
    best_of: names of methods. Of the sources that begin with one, the one whose global model is
        best on validation, by the mean over seeds, is `KIND/best of NAME`. The same name with
        ` at equal bytes` is the best of those that receive no more than the source `within`.
    choosing_seeds: with these all sources are trained, and the best are chosen by their validation
        alone; with the other seeds only the chosen ones are trained. Without, all seeds choose.
    by_linear_layer: top1 and top5 are of a linear layer on the student's features, which are
        frozen; it is trained on the labelled training images (train/linear_probe).
    variants: settings by name, each for a run of the experiment; a row has a variant's name in
        place of a source, and the teacher's accuracy as `top1/teacher of VARIANT`.
    latencies: also time the variants' last students side by side (`student_latencies`).
    """

    experiment: str
    without_images: str
    images: tuple[str, ...] = ()
    overrides: Mapping[str, Any] | None = None
    curves: bool = False
    pictures: tuple[str, ...] = ()
    exports: tuple[Literal["pt2", "onnx"], ...] = ()
    best_of: tuple[str, ...] = ()
    within: str | None = None
    choosing_seeds: tuple[int, ...] = ()
    by_linear_layer: bool = False
    variants: Mapping[str, Any] | None = None
    latencies: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        yield from missing_images(self.images)
        for name in ("onnxruntime", "onnxscript") if "onnx" in self.exports else ():
            if find_spec(name) is None:
                yield Fault("exports", f"needs {name} for onnx: pip install 'kdlab[onnx]'")
        if self.variants is not None and not self.variants:
            yield Fault("variants", "are none; leave it out")
        if self.variants and (self.exports or self.pictures or self.best_of):
            yield Fault(
                "variants",
                "cannot be with exports, pictures or best_of: these are of one run",
            )
        if self.latencies and not self.variants:
            yield Fault("latencies", "are of variants, and there are none")
        if self.choosing_seeds and not self.best_of:
            yield Fault("choosing_seeds", "choose among best_of, which is empty")
        if self.choosing_seeds and (self.curves or self.exports):
            yield Fault("choosing_seeds", "cannot be with curves or exports")

    def measure(self, folder: Path, say: EmitLine) -> Measured:
        variants: list[tuple[str | None, Any]] = [*(self.variants or {}).items()]
        variants = variants or [(None, self._choosing() if self.best_of else {})]
        known = [(self._loaded(changes, name), name) for name, changes in variants]
        runs = [self._trained(experiment, folder, say, name) for experiment, name in known]
        values: dict[str, Sequence[float]] = {}
        curves: dict[str, dict[str, Points]] = {}
        seen: dict[str, Sequence[Points]] = {}
        for run in runs:
            values |= run.values
            seen |= run.seen
            for panel, lines in run.curves.items():
                curves.setdefault(panel, {}).update(lines)
        shares, undefined = shares_of_time(seen)
        values |= shares
        if self.latencies:
            paths = [run.facts["student"] for run in runs]
            students = dict(zip(self.variants or {}, paths, strict=True))
            data = known[-1][0].spec.data.load()
            values |= student_latencies(students, data.inputs[data.test[:2]])
        choices = [run.facts["chosen"] for run in runs if "chosen" in run.facts]
        if self.best_of:
            chosen = candidates.best_candidates(values, self.best_of, self.within)
            choices += [f"{name} {best}" for name, best in chosen.items()]
            say(f"chosen on validation: {'; '.join(choices)}")
            if self.choosing_seeds:
                runs.append(self._train_best({*chosen.values()}, folder, say))
                for name, more in runs[-1].values.items():
                    values[name] = [*values.get(name, ()), *more]
            values |= candidates.of_the_best(values, chosen)
            why = f"all its candidates take in more than {self.within}"
            labels = [f"{k}{candidates.EQUAL_BYTES}" for k in self.best_of if self.within]
            undefined |= {f"global/best of {k}": why for k in labels if k not in chosen}
        ids = {key: [run.facts[key] for run in runs] for key in ("run", "spec_hash")}
        facts = {
            "run_seconds": sum(run.facts["run_seconds"] for run in runs),
            "seeds": sorted({seed for run in runs for seed in run.facts["seeds"]}),
            **({"chosen": "; ".join(choices)} if choices else {}),
            **{key: each[0] if len(each) == 1 else each for key, each in ids.items()},
        }
        return Measured(
            values=values | _differences(values),
            undefined=undefined,
            seen=seen,
            pictures=[picture for run in runs for picture in run.pictures],
            curves=curves,
            facts=facts,
        )

    def _choosing(self) -> dict[str, list[int]]:
        """Return the changes for the run that chooses, with all sources."""
        known = self._loaded({}).resolved
        compared = known["method"].get("compare") or {}
        lost = [k for k in self.best_of if not candidates.settings_of(k, compared)]
        lost += [k for k in (self.within,) if k and k not in compared]
        if lost:
            raise BadInput(
                f"best_of and within name {', '.join(lost)}, which method.compare has not: it has "
                f"{', '.join(compared) or 'nothing'}."
            )
        if self.choosing_seeds and not set(self.choosing_seeds) < set(known["seeds"]):
            raise BadInput(
                f"choosing_seeds are {list(self.choosing_seeds)}, and seeds {known['seeds']}: "
                "the first are to be some of the second, not all."
            )
        return {"seeds": list(self.choosing_seeds)} if self.choosing_seeds else {}

    def _train_best(self, chosen: Collection[str], folder: Path, say: EmitLine) -> Measured:
        """Train the chosen sources with the seeds that did not choose them."""
        spec = self._loaded({}).resolved
        compared = spec["method"]["compare"].items()
        changes = {
            "seeds": [seed for seed in spec["seeds"] if seed not in self.choosing_seeds],
            "method.compare": {k: variant for k, variant in compared if k in chosen},
        }
        return self._trained(self._loaded(changes), folder, say, None)

    def _loaded(self, changes: Mapping[str, Any], variant: str | None = None) -> Experiment:
        experiment = load(*self._named(changes))
        sources = experiment.spec.sources()
        if variant is not None and len(sources) > 1:
            raise BadInput(
                f"{variant} of {experiment.name} compares {', '.join(sources)}; with variants it "
                "may train with one source: set compare=[]."
            )
        return experiment

    def _trained(
        self, experiment: Experiment, folder: Path, say: EmitLine, variant: str | None
    ) -> Measured:
        """Measure one run; a variant's name replaces that of the source."""
        if variant is not None:
            say(f"training: {variant}")
        run, since = run_of(experiment, folder, say)
        result = run.wait(_Progress(say).on_event, since=since).result
        rows = sorted(result["runs"], key=lambda row: row["seed"])
        values: dict[str, list[float]] = {}

        def shown(source: str) -> str:
            if variant is None:
                return source
            return f"teacher of {variant}" if source == TEACHER else variant

        for row in rows:
            judged: dict[str, float] = {}
            if self.by_linear_layer:
                judged = _by_linear_layer(row["student_path"], experiment.spec)
            for name, value in (_of_a_row(row) | judged).items():
                values.setdefault(f"{name}/{shown(row['source'])}", []).append(value)
        if result["teacher_top1"] is not None:
            values |= _beside(float(result["teacher_top1"]), shown(TEACHER), values)
        say("looking at calibration on test images")
        for member, error in run.examine(most=10_000).calibration().items():
            values.setdefault(f"ece/{shown(member.split('/')[0])}", []).append(error)
        values |= _costs(result["costs"], variant)
        values |= self._exported(run, rows[-1], folder, say)
        for picture in self.pictures:
            shutil.copyfile(run.path / picture, folder / picture)
        seen = curves_of(run, variant) if self.curves else {}
        first = {name: of_seeds[0] for name, of_seeds in seen.items()}
        return Measured(
            values=values,
            pictures=[folder / picture for picture in self.pictures],
            curves={"top-1 on validation, %": first} if first else {},
            seen=seen,
            facts={
                "seeds": sorted({row["seed"] for row in rows}),
                "spec_hash": experiment.hash,
                "run": run.id,
                "run_seconds": result["wall_seconds"],
                "student": rows[-1]["student_path"],
                **_choices(run),
            },
        )

    def _exported(
        self, run: Run, row: Mapping[str, Any], folder: Path, say: EmitLine
    ) -> dict[str, list[float]]:
        values: dict[str, list[float]] = {}
        for form in self.exports:
            beside = StudentWithTeacher(run.folder, Path(row["student_path"]))
            path = folder / f"student.{form}"
            try:
                done = ship(beside.student, beside.images(), form, path)
            except ModelError as error:  # the rest of the table is measured all the same
                say(str(error))
                continue
            values[f"apart/{form}"] = [done.apart]
            values[f"same_top1/{form}"] = [100 * done.same_top1]
        return values

    def _named(self, changes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the experiment's config and its overrides."""
        overrides = dict(self.overrides or {}) | dict(changes)
        if not self.images:
            return self.without_images, overrides
        known = load(self.experiment, overrides).resolved
        overrides |= {"data": self._of_images(known["data"])}
        teacher = known.get("teacher")
        if isinstance(teacher, list):
            overrides["teacher"] = [
                spec | {"data": self._of_images(spec["data"])} if spec["data"] else spec
                for spec in teacher
            ]
        elif teacher is not None and teacher["data"] is not None:  # else it has weights
            overrides["teacher.data"] = self._of_images(teacher["data"])
        return self.experiment, overrides

    def _of_images(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return data of `images` with the split and augmentation of other data."""
        counts = ("train_samples", "test_samples", "validation_share", "labels_per_class")
        settings = {key: data[key] for key in ("augment", "size", *counts) if key in data}
        return {"type": "data/image_folder", "root": roots_of(self.images)} | settings


_OF_A_ROW = {
    "top1": "student_top1",
    "best": "student_top1_best",
    "top5": "student_top5",
    "global": "global_top1",
    "seconds": "train_seconds",
    "wall": "wall_seconds",
    "exchanged_mb": "exchanged_mb",
    "samples_per_second": "samples_per_second",
    "lost": "samples_lost",
    "repeated": "samples_repeated",
}


def _of_a_row(row: Mapping[str, Any]) -> dict[str, float]:
    named = {name: row[key] for name, key in _OF_A_ROW.items()}
    known = {name: float(value) for name, value in named.items() if value is not None}
    return known | dict(row["more"])


def _by_linear_layer(path: str, spec: ExperimentSpec) -> dict[str, float]:
    data, batch = spec.data.load(), spec.train.evaluate_batch
    student = load_exported(path)
    fit_last_layer(student, data, "cpu", batch)
    accuracy = evaluate(student, data, data.test, batch)
    return {"top1": accuracy.top1, "top5": accuracy.top5}


def _beside(
    teacher: float, label: str, values: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Return the teacher's top-1 by its label; that of others in percent of it, and over it."""
    shares = {
        name.replace("top1", "kept_pct", 1): [100 * top1 / teacher for top1 in every]
        for name, every in values.items()
        if name.startswith("top1/") and teacher > 0
    }
    ahead = {
        name.replace("top1", "over_teacher", 1): [top1 - teacher for top1 in every]
        for name, every in values.items()
        if name.startswith(("top1/", "blocks_top1/"))
    }
    return shares | ahead | {f"top1/{label}": [teacher]}


def _choices(run: Run) -> dict[str, str]:
    """Return the stand-ins that each training of a Puzzle chose, as one sentence."""
    every = select(run.folder.events, BlocksChosen)
    choices = [f"{event.member} {', '.join(event.choices)}" for event in every]
    return {"chosen": "; ".join(choices)} if choices else {}


def _costs(costs: CostOfEach, variant: str | None = None) -> dict[str, list[float]]:
    """Costs by name; a variant's are `cost/VARIANT/latency_ms`, `smaller/VARIANT/latency_ms`."""
    named = {variant or who if who != TEACHER else who: cost for who, cost in costs.items()}
    each = {
        f"cost/{who}/{name}": [float(value)]
        for who, cost in named.items()
        for name, value in cost.items()
    }
    where = f"smaller/{variant}" if variant else "smaller"
    ratios = times_smaller(costs)
    return each | {f"{where}/{name}": [value] for name, value in ratios.items()}


def _differences(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """`top1/served-none`: of each seed; `beyond/served-none`: of the means, beyond both spreads."""
    names = [n.removeprefix("top1/") for n in values if n.startswith("top1/")]
    differences = {}
    for name, rival in permutations(names, 2):
        a, b = values[f"top1/{name}"], values[f"top1/{rival}"]
        if len(a) == len(b):
            each = [x - y for x, y in zip(a, b, strict=True)]
            differences[f"top1/{name}-{rival}"] = each
            if len(a) > 1:
                beyond = mean(a) - mean(b) - stdev(a) - stdev(b)
                differences[f"beyond/{name}-{rival}"] = [beyond]
    return differences


class _Progress:
    """Says what a run prints in a terminal, its epochs, and how many trainings are done."""

    def __init__(self, say: EmitLine) -> None:
        self._say, self._members, self._done = say, 0, 0

    def on_event(self, event: Event) -> None:
        if line := event.text():
            self._say(line)
        match event:
            case RunStarted():
                self._members = len(event.members)
            case EpochDone(validation_top1=top1):
                shown = "" if top1 is None else f", top-1 on validation {top1:.2f} %"
                self._say(f"{event.member}: epoch {event.epoch}{shown}")
            case MemberDone():
                self._done += 1
                self._say(f"{event.member} is trained, {self._done} of {self._members}")
