"""What it costs a student to be served: EDL-Dist against soft labels from memory.

Teachers are emulated (they take no processor time) and fast enough, so what is measured
is the reader, the wires and the shared memory. Control is the same loop, loss and views
with soft labels made in memory; the ratio to plain N-training is printed beside it.
Variants take turns within each repeat, so that a drift of the machine meets all.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from kdlab.cluster.deployment import Deployment
from kdlab.cluster.emulated_pool import EmulatedPool
from kdlab.cluster.probe import probe_of
from kdlab.cluster.served import Served
from kdlab.data.samples import PlannedSamples, planned
from kdlab.data.synthetic import Synthetic
from kdlab.losses.hinton import Hinton
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import Figure, Report, figure, report
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.scripted import Scripted
from kdlab.soft_labels.source import SourceContext, SourceSpec, TeacherPool
from kdlab.train.recipe import Recipe
from kdlab.train.student import Job, StudentLoop

_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One size of image and of step."""

    size: int  # pixels of a side
    batch: int
    step_ms: float  # aimed at; the layers are chosen so that it comes near
    batches: int  # per epoch: three epochs take two to four seconds

    @property
    def name(self) -> str:
        return f"{self.size}/{self.step_ms:g}ms"


CASES = (
    Case(32, 64, 5, 200),
    Case(32, 64, 80, 16),
    Case(224, 16, 15, 80),
    Case(224, 16, 80, 16),
)


def measure(repeats: int = 5, say: Callable[[str], None] = lambda line: None) -> Report:
    """`served_over_memory` and `served_over_n_training`, by way of input and case."""
    torch.set_num_threads(1)
    figures: list[Figure] = []
    for case in CASES:
        figures += _measure_case(case, repeats, say)
    return report("edl_dist", figures)


def _measure_case(case: Case, repeats: int, say: Callable[[str], None]) -> list[Figure]:
    samples = _samples(case)
    spec, rate = _calibrated(case, samples)
    ways: tuple[Literal["reference", "value_uint8"], ...] = ("reference", "value_uint8")
    rates: dict[str, list[float]] = {name: [] for name in ("none", "memory", *ways)}
    volume_over_ut = []
    ut = 16 * case.batch
    with _emulated(samples, rate) as pool:
        for repeat in range(repeats):
            order = list(rates) if repeat % 2 == 0 else list(rates)[::-1]
            for name in order:
                source: SourceSpec = Scripted() if name == "memory" else NoTeacher()
                if name in ways:
                    inputs = ways[ways.index(name)]
                    source = Served(lt=4 * case.batch, ut=ut, inputs=inputs)
                result, figures = _train(spec, samples, source, pool, rate)
                rates[name].append(result)
                if name in ways:
                    volume_over_ut.append(figures["volume_max"] / ut)
            shown = ", ".join(f"{k} {v[-1]:.0f}" for k, v in rates.items())
            say(f"{case.name} repeat {repeat + 1}/{repeats}: {shown} samples/s")
    goals = {"reference": ">= 0.97", "value_uint8": ">= 0.95"}
    made = []
    for way in ways:
        for base, goal in (("memory", goals[way]), ("none", None)):
            ratios = [a / b for a, b in zip(rates[way], rates[base], strict=True)]
            label = {"memory": "served_over_memory", "none": "served_over_n_training"}[base]
            made.append(figure(f"{label}/{way}/{case.name}", ratios, "ratio", goal))
    made.append(
        figure(f"volume_over_ut_max/{case.name}", [max(volume_over_ut)], "ratio", "<= 1")
    )
    step = [1000 * case.batch / r for r in rates["memory"]]
    made.append(figure(f"step_ms/{case.name}", step, "ms"))
    return made


def _samples(case: Case) -> PlannedSamples:
    # 10 % each go to validation and test.
    data = Synthetic(samples=int(case.batch * case.batches / 0.81), size=case.size)
    return planned(data.load(), data.to_dict(), batch=case.batch, seed=0, epochs=_EPOCHS)


def _calibrated(case: Case, samples: PlannedSamples) -> tuple[PatchNet, float]:
    """A student whose step takes about `step_ms`, and its rate t_s."""
    patch = max(4, case.size // 16)

    def rate_of(depth: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            spec = PatchNet(patch=patch, depth=depth)
            return _loop(spec, samples, Path(folder)).measure_rate(0.3)

    one, many = (1000 * case.batch / rate_of(depth) for depth in (1, 9))
    depth = max(1, 1 + round((case.step_ms - one) / max(1e-3, (many - one) / 8)))
    return PatchNet(patch=patch, depth=depth), rate_of(depth)


@contextmanager
def _emulated(samples: PlannedSamples, rate: float) -> Iterator[TeacherPool]:
    deployment = Deployment(
        members=(),
        teacher="emulated",
        num_classes=samples.classes,
        shape=samples.data.shape,
        batch=samples.plan.batch,
        data=samples.spec,
        probe=probe_of(samples.data),
        by_reference=False,
        components={},
    )
    with tempfile.TemporaryDirectory() as folder:
        pool = EmulatedPool(teachers=4, t_t=rate).start(deployment, Path(folder))
        with closing(pool):
            pool.wait()
            yield pool


def _loop(spec: PatchNet, samples: PlannedSamples, folder: Path) -> StudentLoop:
    torch.manual_seed(0)
    return StudentLoop(
        Job(
            recipe=Recipe(
                epochs=_EPOCHS,
                batch=samples.plan.batch,
                threads=1,
                device="cpu",
                evaluate_every=_EPOCHS,
            ),
            model_spec=spec,
            model=spec.build(samples.classes, samples.data.shape[0]),
            samples=samples,
            loss=Hinton(),
            seed=0,
            folder=folder,
            spec_hash="bench",
            emit=lambda event, /, **data: None,
        )
    )


def _train(
    spec: PatchNet,
    samples: PlannedSamples,
    source: SourceSpec,
    pool: TeacherPool,
    rate: float,
) -> tuple[float, dict[str, float]]:
    """(samples/s, last figures of the source) of one short training."""
    with tempfile.TemporaryDirectory() as folder:
        loop = _loop(spec, samples, Path(folder))
        built = source.build(
            SourceContext(
                samples=samples,
                student="bench",
                folder=Path(folder),
                pool=pool,
                student_rate=lambda: 2 * rate,  # two of four teachers: fast enough
                start=loop.start(),
            )
        )
        with closing(built):
            result = loop.run(built)
        return result.samples_per_second, result.figures
