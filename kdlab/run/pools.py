"""The teacher pools of a run: of whole teachers, and of their first blocks."""

import json
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kdlab.cluster import notebook_components
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.local_pool import RunningLocalPool
from kdlab.cluster.pool import Pool
from kdlab.cluster.probe import probe_images, proof_of
from kdlab.models.prefix import Prefix
from kdlab.run.blockwise import cutting_of, method_of
from kdlab.run.deployed import deployment_of, ways_of
from kdlab.run.folder import RunFolder
from kdlab.run.ingredients import Ingredients
from kdlab.run.pool_orders import PoolOrders
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.blocks.served_prefix import width_of
from kdlab.train.events import Emit
from kdlab.train.steering import CONTROL


class Pools:
    """Each is started for the first member of the run that needs it.

    Args:
        run: its folder.
        ingredients: teacher and data.
        emit: events for people.
        stop: whether the user asked to stop.
        shared: serves the teacher already, and is not closed here.
    """

    def __init__(
        self,
        run: RunFolder,
        ingredients: Ingredients,
        emit: Emit,
        stop: Callable[[], bool],
        shared: Pool | None = None,
    ) -> None:
        self.run, self.ingredients, self.spec = run, ingredients, ingredients.spec
        self._emit, self._stop = emit, stop
        self._up: dict[str, Pool] = {}
        self._shared = shared
        self._orders: list[PoolOrders] = []

    def whole(self) -> Pool:
        """Serves soft labels."""
        if self._shared is not None:
            return self._shared
        return self._pool("pool", self._deployment)

    def prefix(self) -> Pool:
        """Serves the outputs of the teacher's first blocks."""
        return self._pool("pool_of_blocks", self._prefix_deployment)

    def _pool(self, folder: str, deployment: Callable[[], Deployment]) -> Pool:
        if folder not in self._up:
            assert self.spec.teacher_pool is not None
            self._emit("pool_starting", pool=self.spec.teacher_pool.component)
            pool = self.spec.teacher_pool.start(deployment(), self.run.path / folder)
            self._up[folder] = pool
            if isinstance(pool, RunningLocalPool):
                path = self.run.path / CONTROL
                self._orders.append(PoolOrders(path, pool, self._emit, self.run.since))
            status = pool.wait(self._stop)
            self._emit("pool_ready", address=pool.address, teachers=status["teachers"])
        return self._up[folder]

    def _deployment(self) -> Deployment:
        with torch.random.fork_rng():
            answers = self.ingredients.load_teacher().infer
        return self._of(answers, self.spec.labelled.batch, self.spec.soft_labels)

    def _of(
        self, answers: Callable[[Tensor], Tensor], batch: int, source: SourceSpec
    ) -> Deployment:
        """Of the teacher, with the proof of a model that answers so."""
        data = self.ingredients.data
        reference = answers(torch.from_numpy(probe_images(data.shape)))
        named = json.loads((self.run.path / "components.json").read_text())
        return deployment_of(
            self.ingredients.teacher,
            data,
            data_spec=self.spec.data.to_dict(),
            batch=batch,
            **ways_of(source),
            components=notebook_components.pack(set(named)),
            reference=tuple(map(tuple, proof_of(reference.numpy()))),
        )

    def _prefix_deployment(self) -> Deployment:
        """As for the whole teacher, with other answers."""
        served = method_of(self.spec).prefix
        assert served is not None
        data, spec = self.ingredients.data, self.spec
        (teacher,) = self.ingredients.teacher.members
        with torch.random.fork_rng():
            whole = teacher.build(len(data.classes), data.shape[0])
            cutting = cutting_of(spec, whole, data, spec.seeds[0], torch.device("cpu"))
            cuts = cutting.teacher_cuts[: served.blocks]
            model = Prefix(
                model=teacher.weightless(),
                cuts=cuts,
                classes=len(data.classes),
                all=served.blocks > len(cuts),
            )
            width = width_of(cutting.outputs[: served.blocks])
            built = model.build(width, data.shape[0])
            built.net.load_state_dict(whole.net.state_dict())
        member = {
            "model": model.to_dict(),
            "weights": str(teacher.weights),
            "sha256": teacher.sha256,
            "weight": 1.0,
        }
        with torch.inference_mode():
            made = self._of(built.eval(), spec.train.batch, served.source)
        return replace(
            made,
            members=(member,),
            teacher=f"{teacher.fingerprint}-{served.blocks}",
            num_classes=width,
        )

    def close(self) -> None:
        for orders in self._orders:
            orders.close()
        for pool in self._up.values():
            pool.close()
