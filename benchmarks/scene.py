"""The scene of a benchmark: samples, a folder, a pool and students, for the time of a block."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.harness import Scratch
from benchmarks.slices import TimedTraining
from benchmarks.students import ENDLESS, HINTON, deployment_for, loop_of
from kdlab.cluster.deployment import DeployedModel, Deployment
from kdlab.cluster.emulated_pool import EmulatedPool
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import PoolSpec, RunningPool
from kdlab.cluster.served import Served, ServedSource
from kdlab.config.seal import file_sha256
from kdlab.data.samples import PlannedSamples
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.model import ModelSpec, Normalised
from kdlab.soft_labels.source import LoadedTeacher, SourceContext, SourceSpec, TeacherPool
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import frozen

Infer = Callable[[Tensor], Tensor]


class Scene(Scratch):
    """Samples, and a pool and students for them."""

    pool: TeacherPool | None = None
    waited_s = 0.0  # for its teachers

    def __init__(self, samples: PlannedSamples, folder: Path | None = None) -> None:
        super().__init__(folder)
        self.samples = samples

    def model(self, spec: ModelSpec) -> Normalised:
        """Build an untrained teacher for these samples."""
        return frozen(spec.build(self.samples.classes, self.samples.data.shape[0]))

    def emulated(self, batch: int | None = None, **options: Any) -> RunningPool:
        """Emulated teachers that are up; `options` are those of `EmulatedPool`."""
        default = deployment_for(self.samples)
        deployment = default if batch is None else replace(default, batch=batch)
        return self._up(EmulatedPool(**options), deployment)

    def local(
        self, spec: ModelSpec, model: Normalised | None = None, **options: Any
    ) -> RunningPool:
        """Teachers that are up and compute; `options` are those of `LocalPool`."""
        deployment = self.deployment(spec, self.model(spec) if model is None else model)
        # `bench teacher` measures engines; here all wait for the same work.
        return self._up(LocalPool(**{"engine": "eager"} | options), deployment)

    def _up(self, spec: PoolSpec, deployment: Deployment) -> RunningPool:
        pool = spec.start(deployment, self.folder / "pool")
        self.callback(pool.close)
        begin = time.monotonic()
        pool.wait()
        self.pool, self.waited_s = pool, time.monotonic() - begin
        return pool

    def deployment(self, spec: ModelSpec, model: Normalised) -> Deployment:
        weights = self.folder / "teacher.safetensors"
        save_file(model.net.state_dict(), weights)
        member = DeployedModel(
            model=spec.to_dict(),
            weights=str(weights),
            sha256=file_sha256(weights),
            weight=1.0,
        )
        return replace(
            deployment_for(self.samples),
            members=(member,),
            teacher=member.sha256[:16],
            by_reference=True,
        )

    def place(
        self, name: str, rate: float = 1e9, infer: Infer | None = None
    ) -> SourceContext:
        """Return the context of a source; `infer` is a teacher in the student's process."""
        return SourceContext(
            samples=self.samples,
            student=name,
            folder=self.folder / name,
            load_teacher=None if infer is None else partial(LoadedTeacher, infer, "bench"),
            pool=self.pool,
            student_rate=lambda: rate,
            start={"epoch": 0, "done": []},
        )

    def served(self, name: str, source: Served, rate: float = 1e9) -> ServedSource:
        """Soft labels of the pool, without a student."""
        built = source.build(self.place(name, rate))
        self.callback(built.close)
        return built

    def training(
        self,
        name: str,
        spec: ModelSpec,
        source: SourceSpec,
        rate: float = 1e9,
        *,
        infer: Infer | None = None,
        loss: LossSpec = HINTON,
        recipe: Recipe = ENDLESS,
        beside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> TimedTraining:
        """A student with its source of soft labels; the reader is its helper."""
        place = self.place(name, rate, infer)
        built = source.build(place)
        self.callback(built.close)
        reader = built.reader.pid if isinstance(built, ServedSource) else None
        return TimedTraining(
            name=name,
            beside=beside,
            loop=loop_of(spec, self.samples, place.folder, loss, recipe),
            source=built,
            helper=None if reader is None else psutil.Process(reader),
        )


def infer_with(model: Normalised) -> Infer:
    """Return a function that computes the model's logits on its device."""

    @torch.inference_mode()
    def infer(views: Tensor) -> Tensor:
        return model(views.to(model.mean.device, non_blocking=True)).float().cpu()

    return infer
