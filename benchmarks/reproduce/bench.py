"""Rows that a benchmark of kdlab measures, with all variants side by side in one run."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from benchmarks import WITH_PARTS
from benchmarks.reproduce.measurement import (
    Measured,
    MeasurementSpec,
    missing_images,
    roots_of,
)
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.report.figures import EmitLine, Report


@register("reproduce/bench")
@dataclass(frozen=True, kw_only=True)
class Bench(MeasurementSpec):
    """`kdlab bench NAME`: a row takes one of its figures by name.

    only: names of the parts to run; empty runs all.
    repeats: of each ratio, or seeds; null takes the benchmark's default.
    runs: of the whole benchmark, one after another; with several, a row has each run's median.
    images: class folders or zips of CIFAR-10, for a benchmark that trains on images.
    without_images: settings, key=value, where `images` is empty.
    experiment: of bench ec_dnn, the config that it trains by; null takes its default.
    settings: of that config, key=value.
    budget_s: of bench ec_dnn, overall time of each training, s; null takes its default.
    budget_steps: in place of it, as long as this many steps of one model take.
    """

    name: Literal[
        "edl_dist",
        "gpu",
        "pipe_bd",
        "ec_dnn",
        "links",
        "peers",
        "storm",
        "teacher",
        "transport",
        "unlike",
    ]
    only: tuple[str, ...] = ()
    repeats: Annotated[int, Range(ge=1)] | None = None
    runs: Annotated[int, Range(ge=1)] = 1
    images: tuple[str, ...] = ()
    without_images: tuple[str, ...] = ()
    experiment: str | None = None
    settings: tuple[str, ...] = ()
    budget_s: Annotated[float, POSITIVE] | None = None
    budget_steps: Annotated[int, Range(ge=1)] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if self.only and self.name not in WITH_PARTS:
            yield Fault("only", f"names parts, and bench {self.name} has none")
        if (self.images or self.without_images) and self.name != "ec_dnn":
            yield Fault("images", f"has no effect on bench {self.name}")
        of_ec_dnn = self.experiment, self.settings, self.budget_s, self.budget_steps
        if any(of_ec_dnn) and self.name != "ec_dnn":
            yield Fault("experiment", f"has no effect on bench {self.name}")
        if self.budget_s and self.budget_steps:
            yield Fault("budget_steps", "is in place of budget_s; set one of them")
        yield from missing_images(self.images)

    def measure(self, folder: Path, say: EmitLine) -> Measured:
        overrides = [*self.settings]
        if self.images:
            overrides.append(f"data.root=[{', '.join(roots_of(self.images))}]")
        else:
            overrides += self.without_images
        asked: dict[str, Any] = {
            "repeats": self.repeats,
            "only": self.only,
            "experiment": self.experiment,
            "budget_s": self.budget_s,
            "budget_steps": self.budget_steps,
            "overrides": overrides,
        }
        options = {name: value for name, value in asked.items() if value}
        # The name is one of the literals above.
        measure = import_module(f"benchmarks.{self.name}").measure
        reports: list[Report] = [measure(**options, say=say) for _ in range(self.runs)]
        newest, values = reports[-1], dict[str, list[float]]()
        for figure in (f for report in reports for f in report["figures"]):
            numbers = figure["values"] if self.runs == 1 else [figure["value"]]
            values.setdefault(figure["name"], []).extend(numbers)
        return Measured(
            values=values,
            undefined=newest.get("undefined", {}),
            seen=newest.get("curves", {}),
        )
