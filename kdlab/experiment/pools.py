"""Teacher pools of a run, and the hosts of its ranks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from kdlab.changes.change import CONTROL
from kdlab.cluster import notebook_components
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.hosted_ranks import DaskHosts
from kdlab.cluster.pool import Pool
from kdlab.cluster.teachers.probe import probe_images, proof_of
from kdlab.cluster.transport.known_schedulers import require_known
from kdlab.events.event import Emit
from kdlab.events.teachers import PoolReady, PoolStarting
from kdlab.experiment.deployed import deployment_of
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.teacher_changes import TeacherChanges
from kdlab.models.headless import Headless, without_head
from kdlab.models.model import ModelSpec
from kdlab.soft_labels.source import SourceSpec, TeacherPool


class Pools:
    """Pools of a run; each starts with the first member that needs it.

    A `shared` pool serves the teacher already and is not closed here. With `others`, trials of a
    sweep use the pools that start here, too.
    """

    def __init__(
        self,
        run: RunFolder,
        setup: TrainingSetup,
        emit: Emit,
        stop: Callable[[], bool],
        shared: TeacherPool | None = None,
        *,
        others: bool = False,
    ) -> None:
        self.run, self.setup, self.spec = run, setup, setup.spec
        self._emit, self._stop = emit, stop
        self._up: dict[str, Pool] = {}
        self._shared, self._others = shared, others
        self._changes: list[TeacherChanges] = []

    @cached_property
    def hosts(self) -> DaskHosts | None:
        """Dask workers for ranks; None is this machine."""
        workers = self.spec.workers
        if workers is None:
            return None
        require_known("workers", workers.address)
        return DaskHosts(workers.address, workers.certificates())

    def teacher_pool(self) -> TeacherPool:
        """Return the pool that serves soft labels; starts it on first use."""
        if self._shared is not None:
            return self._shared
        return self.start("pool", self._pool_deployment)

    def start(self, folder: str, deployment: Callable[[], Deployment]) -> Pool:
        """Start a pool in a folder of the run; returns once a teacher serves."""
        if folder not in self._up:
            assert self.spec.teacher_pool is not None
            self._emit(PoolStarting(pool=self.spec.teacher_pool.component))
            pool = self.spec.teacher_pool.start(deployment(), self.run.path / folder)
            self._up[folder] = pool
            if pool.machines.adjustable:
                path, since = self.run.path / CONTROL, self.run.since
                self._changes.append(TeacherChanges(path, pool, self._emit, since).start())
            lines = [teacher.to_json() for teacher in pool.wait(self._stop).teachers]
            self._emit(PoolReady(address=pool.address, teachers=lines))
        return self._up[folder]

    def _pool_deployment(self) -> Deployment:
        """Return the deployment; a single student, which needs each answer once, shares none."""
        served = [m for m in self.spec.members() if m.source.needs_teacher == "served"]
        # A pool that somebody else runs may have other students.
        pool = self.spec.teacher_pool
        exclusive = not (self._others or (pool is not None and pool.external))
        deployment = self._deployment()
        if exclusive and len(served) == 1 and self.spec.method.one_student:
            return replace(deployment, share_answers=False)
        return deployment

    def _deployment(self) -> Deployment:
        batch = self.spec.method.labelled(self.spec).batch
        source = self.spec.soft_labels
        if source.gives_hidden:
            return self._headless(batch, source)
        if self.spec.features:
            specs, model, row, fingerprint = self.setup.tapped()
            return self._tapped(model, specs, row, fingerprint, batch, source)
        with torch.random.fork_rng():
            answers = self.setup.load_teacher().infer
        return self.deployment(answers, batch, source)

    def _headless(self, batch: int, source: SourceSpec) -> Deployment:
        """Deploy the teacher without its last layer, which the student's process applies."""
        (teacher,), data = self.setup.teacher.members, self.setup.data
        name, head = self.setup.teacher_head
        spec = Headless(
            model=teacher.spec.model.without_weights(), head=name, classes=len(data.classes)
        )
        model = self.setup.teacher_model()
        without_head(model.net, name)
        fingerprint = f"{teacher.fingerprint}-hidden"
        return self._tapped(model, [spec], head.in_features, fingerprint, batch, source)

    def _tapped(
        self,
        model: nn.Module,
        specs: Sequence[ModelSpec],
        row: int,
        fingerprint: str,
        batch: int,
        source: SourceSpec,
    ) -> Deployment:
        """Deploy teachers that return `row` numbers a sample: inner outputs or hidden states."""
        with torch.inference_mode():
            deployment = self.deployment(model, batch, source)
        pairs, teachers = zip(deployment.members, specs, strict=True), self.setup.teacher
        return replace(
            deployment,
            members=tuple(replace(member, model=spec.to_dict()) for member, spec in pairs),
            combination=teachers.combination if len(specs) > 1 else None,
            teacher=fingerprint,
            num_classes=row,
            engine="eager",  # engines are checked by probabilities, which these are not
        )

    def deployment(
        self, answers: Callable[[Tensor], Tensor], batch: int, source: SourceSpec
    ) -> Deployment:
        """Deploy the teacher, with the reference answers that prove its weights."""
        data, pool = self.setup.data, self.spec.teacher_pool
        reference = answers(torch.from_numpy(probe_images(data.shape)))
        deployment = deployment_of(
            self.setup.teacher,
            data,
            data_spec=self.spec.data.to_dict(),
            batch=batch,
            **source.ways(),
            components=notebook_components.package_components(set(self.run.components())),
            reference=tuple(map(tuple, proof_of(reference.numpy()))),
        )
        return deployment if pool is None else pool.as_served(deployment)

    def close(self) -> None:
        for changes in self._changes:
            changes.close()
        for pool in self._up.values():
            pool.close()
        if "hosts" in self.__dict__ and self.hosts is not None:
            self.hosts.close()
