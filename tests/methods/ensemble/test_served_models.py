"""A pool that serves local models: started once, told of others when they change."""

import hashlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from local_models import MODEL

import kdlab
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import PoolSpec
from kdlab.cluster.teachers.probe import identity_of, probe_images, proof_of
from kdlab.errors import RunStopped
from kdlab.experiment.chaos_targets import OwnTargets
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.exchange import publish
from kdlab.methods.ensemble.served_models import ServedModels
from kdlab.soft_labels.source import PoolAddress


class ScriptedPool:
    """Up at once, with what its spec was started with."""

    address, tls = "tcp://127.0.0.1:1", None

    def __init__(self, deployment, log):
        self.teacher, self.log, self.closed, self.waited = deployment.teacher, log, 0, []

    def wait(self, stop):
        self.waited.append(stop)
        if stop():
            raise RunStopped("stopped by the user")
        return PoolStatus(
            deployed=self.teacher, expired=0, renewals=0, students={}, teachers=()
        )

    def close(self):
        self.closed += 1


@dataclass(frozen=True, kw_only=True)
class ScriptedPoolSpec(PoolSpec):
    def start(self, deployment, folder):
        pool = ScriptedPool(deployment, folder)
        STARTED.append((pool, deployment))
        return pool


STARTED = []  # (pool, what it was started with)


@pytest.fixture
def served(tmp_path):
    """Makes (served models, events, orders to the pool) of a member with two workers."""
    STARTED.clear()
    (tmp_path / "components.json").write_text("{}")

    def make(pool=None, stop=lambda: False):
        spec = kdlab.load(
            "smoke/ensemble",
            "method.compare={}",
            "method.workers=2",
            "aggregation={type: train/aggregation/ensemble, tau: 3, compression: "
            "{type: train/compression/distillation, p_iterations: 2, mu: 0.5}, "
            "relabel: {type: cluster/served, lt: 40, ut: 100}}",
            "teacher_pool={type: cluster/local_pool, teachers: 1, engine: eager}",
        ).spec
        spec = replace(spec, teacher_pool=pool or ScriptedPoolSpec())
        setup = TrainingSetup(spec, stop=stop)
        events, orders = [], []
        own = EnsembleRun(spec.method, setup, spec.members()[0])
        training = SimpleNamespace(run=RunFolder(tmp_path), emit=events.append, setup=setup)

        def deploy(address, deployment, **how):
            orders.append((address, deployment, how))

        return ServedModels(own, training, own.relabels, deploy), events, orders

    return make


def models(folder, seed=0):
    """Two local models, as their workers leave them."""
    made = []
    for worker in range(2):
        torch.manual_seed(seed + worker)
        net = MODEL.build(10, 1).net
        made.append(publish(net, worker, folder / f"{seed}.{worker}.safetensors"))
    return made


def test_the_first_models_have_a_pool_started(served, tmp_path):
    serve, events, orders = served()
    targets = serve.targets = OwnTargets()
    address = serve(models(tmp_path))
    ((pool, _),) = STARTED
    assert pool.log == tmp_path / "pool_of_models"
    assert targets.pool is pool  # chaos can hit its teachers
    assert address == PoolAddress(pool.address, pool.teacher, None)
    assert [e.KIND for e in events] == ["pool_starting", "pool_ready", "models_served"]
    assert events[-1].models == [0, 1]
    assert orders == []


def test_each_model_stands_beside_the_others_in_what_is_deployed(served, tmp_path):
    serve, _, _ = served()
    files = models(tmp_path)
    serve(files)
    ((_, deployed),) = STARTED
    data = serve.ensemble_run.setup.data
    assert [m.weights for m in deployed.members] == [file.path for file in files]
    assert [m.sha256 for m in deployed.members] == [file.sha256 for file in files]
    assert {m.weight for m in deployed.members} == {1.0}
    assert deployed.num_classes == 20
    assert deployed.answers == "each"
    assert deployed.identity == identity_of(data)
    together = hashlib.sha256("+".join(f.sha256 for f in files).encode()).hexdigest()
    assert deployed.teacher == together[:16]
    # By what they say to images that everybody can make a teacher is known to be right.
    images = torch.from_numpy(probe_images(data.shape))
    with torch.no_grad():
        said = [serve.ensemble_run.loaded(file)(images).numpy() for file in files]
    expected = proof_of(np.concatenate(said, axis=1))
    assert np.allclose(deployed.reference, expected, atol=1e-5)


def test_the_same_models_are_not_deployed_again(served, tmp_path):
    serve, events, orders = served()
    files = models(tmp_path)
    first = serve(files)
    assert serve(files) == first
    assert len(STARTED) == 1
    assert orders == []
    assert [e.KIND for e in events].count("models_served") == 1


@pytest.mark.parametrize("local", [False, True])
def test_changed_ones_are_told_to_the_pool_that_is_up(served, tmp_path, local, monkeypatch):
    if local:
        monkeypatch.setattr(LocalPool, "start", ScriptedPoolSpec.start)
    serve, events, orders = served(LocalPool() if local else None)
    first = serve(models(tmp_path))
    second = serve(models(tmp_path, seed=7))
    ((pool, _),) = STARTED
    ((address, deployment, how),) = orders
    assert address == pool.address
    assert deployment.teacher == pool.teacher == second.teacher != first.teacher
    # Teachers of a machine's own pool read the files where they are.
    assert how["with_weights"] is (not local)
    assert how["wait_s"] > 0  # for readers that still say goodbye
    kinds = [e.KIND for e in events]
    assert kinds.count("pool_ready") == kinds.count("pool_starting") == 1
    assert kinds.count("models_served") == 2


def test_who_waits_for_it_can_be_stopped(served, tmp_path):
    serve, events, _ = served(stop=lambda: True)
    with pytest.raises(RunStopped):
        serve(models(tmp_path))
    assert [e.KIND for e in events] == ["pool_starting"]
    serve.close()
    assert STARTED[0][0].closed == 1


def test_without_a_pool_there_is_nothing_to_close(served):
    served()[0].close()
    assert STARTED == []
