"""The machines of a run: its teacher pools, and where its ranks are started."""

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
    """Each pool is started for the first member of the run that needs it.

    One that is `shared` serves the teacher already, and is not closed here. What is started here is
    asked by `others` too where trials of a sweep are.
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
        """Where ranks are started; None is this machine."""
        workers = self.spec.workers
        if workers is None:
            return None
        require_known("workers", workers.address)
        return DaskHosts(workers.address, workers.certificates())

    def whole(self) -> TeacherPool:
        """Serves soft labels."""
        if self._shared is not None:
            return self._shared
        return self.started("pool", self._as_asked)

    def started(self, folder: str, deployment: Callable[[], Deployment]) -> Pool:
        """The pool that lies in this folder of the run, once a teacher of it serves."""
        if folder not in self._up:
            assert self.spec.teacher_pool is not None
            self._emit(PoolStarting(pool=self.spec.teacher_pool.component))
            pool = self.spec.teacher_pool.start(deployment(), self.run.path / folder)
            self._up[folder] = pool
            if pool.machines.adjustable:
                path, since = self.run.path / CONTROL, self.run.since
                self._changes.append(TeacherChanges(path, pool, self._emit, since).start())
            said = [teacher.to_json() for teacher in pool.wait(self._stop).teachers]
            self._emit(PoolReady(address=pool.address, teachers=said))
        return self._up[folder]

    def _as_asked(self) -> Deployment:
        """No answer is kept for others where a lone student asks for each of them once."""
        asking = [m for m in self.spec.members() if m.source.needs_teacher == "served"]
        # Who else comes to a pool of somebody else, nobody knows here.
        pool = self.spec.teacher_pool
        alone = not (self._others or (pool is not None and pool.external))
        made = self._deployment()
        if alone and len(asking) == 1 and self.spec.method.one_student:
            return replace(made, share_answers=False)
        return made

    def _deployment(self) -> Deployment:
        batch = self.spec.method.labelled(self.spec).batch
        source = self.spec.soft_labels
        if source.gives_hidden:
            return self._hidden(batch, source)
        if self.spec.features:
            specs, model, row, fingerprint = self.setup.tapped()
            return self._inner(model, specs, row, fingerprint, batch, source)
        with torch.random.fork_rng():
            answers = self.setup.load_teacher().infer
        return self.deployment(answers, batch, source)

    def _hidden(self, batch: int, source: SourceSpec) -> Deployment:
        """The teacher up to its last layer, which the student's process has."""
        (teacher,), data = self.setup.teacher.members, self.setup.data
        name, head = self.setup.teacher_head
        spec = Headless(
            model=teacher.spec.model.without_weights(), head=name, classes=len(data.classes)
        )
        whole = self.setup.whole()
        without_head(whole.net, name)
        by = f"{teacher.fingerprint}-hidden"
        return self._inner(whole, [spec], head.in_features, by, batch, source)

    def _inner(
        self,
        model: nn.Module,
        specs: Sequence[ModelSpec],
        row: int,
        fingerprint: str,
        batch: int,
        source: SourceSpec,
    ) -> Deployment:
        """The teachers with other answers than their logits, or more of them: `row` numbers."""
        with torch.inference_mode():
            made = self.deployment(model, batch, source)
        both, teachers = zip(made.members, specs, strict=True), self.setup.teacher
        return replace(
            made,
            members=tuple(replace(one, model=spec.to_dict()) for one, spec in both),
            combination=teachers.combination if len(specs) > 1 else None,
            teacher=fingerprint,
            num_classes=row,
            engine="eager",  # engines are held to probabilities, and these are none
        )

    def deployment(
        self, answers: Callable[[Tensor], Tensor], batch: int, source: SourceSpec
    ) -> Deployment:
        """The teacher, with the proof of a model that answers so."""
        data, pool = self.setup.data, self.spec.teacher_pool
        reference = answers(torch.from_numpy(probe_images(data.shape)))
        made = deployment_of(
            self.setup.teacher,
            data,
            data_spec=self.spec.data.to_dict(),
            batch=batch,
            **source.ways(),
            components=notebook_components.package_components(set(self.run.components())),
            reference=tuple(map(tuple, proof_of(reference.numpy()))),
        )
        return made if pool is None else pool.as_served(made)

    def close(self) -> None:
        for changes in self._changes:
            changes.close()
        for pool in self._up.values():
            pool.close()
        if "hosts" in self.__dict__ and self.hosts is not None:
            self.hosts.close()
