"""Experiments of a few samples, with a teacher that needs no training."""

import hashlib
import time

import pytest
import torch
from safetensors.torch import save_file
from scripted_children import Starts
from small_experiments import SMALL

import kdlab
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.pool import RunningPool
from kdlab.config import yaml_text
from kdlab.experiment.folder import RunFolder
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.testing.scripted import ScriptedChild

NOTHING_SERVED = Deployment(
    members=(),
    teacher="f",
    num_classes=10,
    shape=(1, 8, 8),
    batch=32,
    data={},
    identity=None,
    by_reference=True,
    components={},
)


@pytest.fixture(scope="session")
def teacher_card(tmp_path_factory):
    """The card of a teacher with random weights, as a config has it."""
    torch.manual_seed(1)
    spec = CifarResNet(depth=8, width=(8, 8, 16, 16))
    path = tmp_path_factory.mktemp("teacher") / "weights.safetensors"
    save_file(spec.architecture(10, 1).state_dict(), path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    model = {
        "type": "models/cifar_resnet",
        "depth": 8,
        "width": [8, 8, 16, 16],
        "weights": str(path),
        "sha256": sha256,
    }
    return {"type": "train/teacher", "model": model}


@pytest.fixture
def spec(teacher_card):
    """Makes the spec of a config, with these keys changed."""

    def make(config="smoke/none", **changes):
        overrides = {name.replace("__", "."): value for name, value in changes.items()}
        base = SMALL if config != "smoke/blockwise" else {}
        if overrides.get("teacher") != "none":
            overrides.setdefault("teacher", teacher_card)
        else:
            overrides["teacher"] = None
        return kdlab.load(config, base | overrides).spec

    return make


@pytest.fixture
def run_of(tmp_path):
    """Makes the folder of a run, as the start of a run with this spec leaves it."""

    def make(spec):
        run = RunFolder(tmp_path / "runs" / "r1")
        run.path.mkdir(parents=True)
        run.path.joinpath("spec.yaml").write_text(yaml_text.dump(spec.to_dict()))
        run.write_status(state="running", created=time.time())
        run.write_origin("small", "hash")
        return run

    return make


@pytest.fixture
def local_pool(tmp_path, kdlab_home):
    """Makes a pool on this machine whose scheduler and teachers are scripts."""
    pools = []

    def make(teachers=2, status=None, **options):
        pool = RunningPool(
            LocalPool(teachers=teachers),
            NOTHING_SERVED,
            tmp_path / f"pool{len(pools)}",
            start=Starts(),
            start_scheduler=lambda *about, **how: (ScriptedChild(), "tls://127.0.0.1:1"),
            **({} if status is None else {"status": status}),
        )
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()
