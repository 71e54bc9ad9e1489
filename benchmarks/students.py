"""Students and teachers of a wanted cost, for benchmarks."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kdlab.cluster.deployment import Deployment
from kdlab.cluster.teachers.probe import identity_of
from kdlab.data.samples import PlannedSamples, planned
from kdlab.data.synthetic import Synthetic
from kdlab.events.event import Emit, discard_event
from kdlab.losses.hinton import Hinton
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec
from kdlab.models.patch_net import PatchNet
from kdlab.train.recipe import Recipe
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentJob

EPOCHS = 1_000_000  # slices never come to an end
HINTON = Hinton()
_MAX_LAYERS = 2048  # of a student that is slow enough for any case
# A training that neither evaluates nor saves.
ENDLESS = Recipe(
    epochs=EPOCHS,
    schedule="constant",
    lr=1e-4,
    threads=1,
    device="cpu",
    evaluate_every=EPOCHS,
    checkpoint_every_s=1e9,
)


@dataclass(frozen=True, slots=True)
class ImageCase:
    """One size of image and of step."""

    size: int  # pixels of a side
    batch: int
    step_ms: float  # aimed at; the layers are chosen so that it comes near
    batches: int = 64  # per epoch

    @property
    def name(self) -> str:
        return f"{self.size}/{self.step_ms:g}ms"


def samples_of(case: ImageCase) -> PlannedSamples:
    # 10 % each go to validation and test.
    count = int(case.batch * case.batches / 0.81)
    data = Synthetic(samples=count, size=case.size)
    return planned(data.load(), data.to_dict(), batch=case.batch, seed=0, epochs=EPOCHS)


def loop_of(
    spec: ModelSpec,
    samples: PlannedSamples,
    folder: Path,
    loss: LossSpec | None = HINTON,
    recipe: Recipe = ENDLESS,
    emit: Emit = discard_event,
) -> StudentLoop:
    """Build a loop on batches of the samples' plan; with the default recipe it never ends."""
    torch.manual_seed(0)
    return StudentLoop(
        StudentJob(
            recipe=replace(recipe, batch=samples.plan.batch),
            model_spec=spec,
            model=spec.build(samples.classes, samples.data.shape[0]),
            samples=samples,
            loss=loss,
            seed=0,
            folder=folder,
            spec_hash="bench",
            emit=emit,
        )
    )


def calibrated(case: ImageCase, samples: PlannedSamples) -> tuple[PatchNet, float]:
    """A student whose step takes about `step_ms`, and its rate t_s."""
    patch = max(4, case.size // 16)

    def rate_of(depth: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            spec = PatchNet(patch=patch, depth=depth)
            return loop_of(spec, samples, Path(folder)).measure_rate(0.3)

    depth = depth_for(case.step_ms, lambda depth: 1000 * case.batch / rate_of(depth))
    return PatchNet(patch=patch, depth=depth), rate_of(depth)


def depth_for(step_ms: float, measure: Callable[[int], float]) -> int:
    """Layers with which a step takes about so long, between two depths that were measured.

    `measure` gives the milliseconds of a step with so many layers. Depths are doubled until a
    step takes longer: a probe that a busy machine disturbs costs accuracy, and never makes a
    student of thousands of layers.
    """
    depth, below = 1, measure(1)
    while below < step_ms and depth < _MAX_LAYERS:
        above = measure(2 * depth)
        if above >= step_ms:
            return depth + round(depth * (step_ms - below) / (above - below))
        depth, below = 2 * depth, max(above, below)
    return depth


def deployment_for(samples: PlannedSamples) -> Deployment:
    """Return the deployment of emulated teachers for these samples."""
    return Deployment(
        members=(),
        teacher="emulated",
        num_classes=samples.classes,
        shape=samples.data.shape,
        batch=samples.plan.batch,
        data=samples.spec,
        identity=identity_of(samples.data),
        by_reference=False,
        components={},
    )
