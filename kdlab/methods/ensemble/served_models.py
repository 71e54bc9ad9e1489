"""Local models as teachers of a pool: what it serves changes with every communication."""

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kdlab.cluster import notebook_components
from kdlab.cluster.deployment import DeployedModel, Deployment
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import Pool, deploy
from kdlab.cluster.teachers.probe import identity_of, probe_images, proof_of
from kdlab.events.ensemble import ModelsServed
from kdlab.events.teachers import PoolReady, PoolStarting
from kdlab.experiment.chaos_targets import OwnTargets
from kdlab.experiment.method import MemberTraining
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.exchange import ModelFile
from kdlab.soft_labels.source import PoolAddress, SourceSpec

_PATIENCE_S = 30.0  # until the readers of the communication before have said goodbye


class ServedModels:
    """Has a pool serve these models, each one's logits beside the others'."""

    def __init__(
        self,
        ensemble_run: EnsembleRun,
        training: MemberTraining,
        source: SourceSpec,
        deploy: Callable[..., None] = deploy,
    ) -> None:
        self.ensemble_run, self.run, self.source = ensemble_run, training.run, source
        self._deploy = deploy
        self._emit, self._stop = training.emit, training.setup.stop
        self.targets: OwnTargets | None = None  # of chaos, which the pool becomes one of
        self._pool: Pool | None = None
        self._served = ""
        self._address: PoolAddress | None = None

    def __call__(self, models: Sequence[ModelFile]) -> PoolAddress | None:
        """What workers must know of the pool, once a teacher has loaded all of them.

        Raises:
            TeacherRefused, ClusterError, RunStopped: as pools do.
        """
        wanted = "+".join(file.sha256 for file in models)
        if wanted != self._served:
            pool = self._with(self._deployment(models))
            status = pool.wait(self._stop)
            if not self._served:
                self._emit(
                    PoolReady(address=pool.address, teachers=status.said_of_teachers())
                )
            self._emit(
                ModelsServed(
                    models=[file.worker for file in models], teachers=len(status.teachers)
                )
            )
            self._served, self._address = wanted, PoolAddress.of(pool)
        return self._address

    def _with(self, deployment: Deployment) -> Pool:
        """The pool, with this deployment."""
        spec = self.ensemble_run.spec.teacher_pool
        assert spec is not None
        if self._pool is None:
            folder = self.run.path / "pool_of_models"
            self._emit(PoolStarting(pool=spec.component))
            self._pool = spec.start(deployment, folder)
            if self.targets is not None:
                self.targets.pool = self._pool
            return self._pool
        self._deploy(
            self._pool.address,
            deployment,
            tls=self._pool.tls,
            with_weights=not isinstance(spec, LocalPool),
            stop=self._stop,
            wait_s=_PATIENCE_S,
        )
        self._pool.teacher = deployment.teacher
        return self._pool

    def _deployment(self, models: Sequence[ModelFile]) -> Deployment:
        data, spec = self.ensemble_run.setup.data, self.ensemble_run.spec
        named = json.loads((self.run.path / "components.json").read_text())
        together = hashlib.sha256("+".join(f.sha256 for f in models).encode())
        ways = self.source.ways()
        return Deployment(
            members=tuple(
                DeployedModel(
                    model=self.ensemble_run.model_spec(file.worker).to_dict()
                    | {"weights": None, "sha256": None},
                    weights=file.path,
                    sha256=file.sha256,
                    weight=1.0,
                )
                for file in models
            ),
            teacher=together.hexdigest()[:16],
            num_classes=len(data.classes) * len(models),
            shape=data.shape,
            batch=spec.train.batch,
            data=spec.data.to_dict(),
            identity=identity_of(data),
            by_reference=ways["by_reference"],
            or_value=ways["or_value"],
            components=notebook_components.pack(set(named)),
            reference=tuple(map(tuple, proof_of(self._answers(models)))),
            answers="each",
            engine="eager",  # these change every round: nothing is worth being measured
        )

    @torch.inference_mode()
    def _answers(self, models: Sequence[ModelFile]) -> NDArray[np.float32]:
        """Right ones to the probe images, one model after the other."""
        images = torch.from_numpy(probe_images(self.ensemble_run.setup.data.shape))
        device = self.ensemble_run.recipe.chosen_device()
        each = [
            self.ensemble_run.loaded(f)(images.to(device)).float().cpu() for f in models
        ]
        found: NDArray[np.float32] = torch.cat(each, dim=1).numpy()
        return found

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
