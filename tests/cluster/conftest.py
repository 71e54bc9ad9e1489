"""A real pool: a Dask scheduler and teachers, each a process of its own."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from pool_in_process import PoolInProcess
from safetensors.torch import load_file, save_file
from tests_support import until

from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.reader.pool_connection import PoolConnection
from kdlab.cluster.served import Served, ServedSource
from kdlab.cluster.teachers import loaded_model
from kdlab.cluster.transport.wire import ask
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.config.seal import file_sha256
from kdlab.data.samples import planned
from kdlab.events.event import discard_event
from kdlab.experiment.deployed import deployment_of
from kdlab.soft_labels.source import SourceContext
from kdlab.train.teacher import PreparedTeachers, TeacherSpec, prepare


@pytest.fixture(scope="session")
def teacher(kdlab_home):
    spec = construct(TeacherSpec, compose_card("teachers/digits_tiny"))
    return PreparedTeachers((prepare(spec, discard_event),))


@pytest.fixture(scope="session")
def deployment(teacher, digits):
    data, spec = digits
    return deployment_of(teacher, data, data_spec=spec.to_dict(), batch=20)


@pytest.fixture
def pools(tmp_path):
    """Starts pools and ends them, whatever the test does."""
    with contextlib.ExitStack() as stack:

        def start(deployment, teachers=2, **options):
            options = {"replace_lost": False, "engine": "eager"} | options
            pool = LocalPool(teachers=teachers, **options).start(
                deployment, tmp_path / "pool"
            )
            stack.callback(pool.close)
            until(lambda: ready(pool) >= teachers)
            return pool

        yield start


def ready(pool):
    return sum(
        t["state"] != "registered"
        for t in ask(pool.address, "kdlab_status", tls=pool.tls)["teachers"]
    )


@pytest.fixture
def served(digits, tmp_path):
    """Makes served sources on a pool of any kind, with a record of what they report."""
    with contextlib.ExitStack() as stack:

        def make(pool, **how):
            source, samples, events = served_by(pool, digits, tmp_path, **how)
            stack.callback(source.close)
            return source, samples, events

        yield make


def served_by(
    pool,
    digits,
    folder,
    *,
    epochs=3,
    batch=20,
    start=None,
    rate=500.0,
    stop=lambda: False,
    student="test",
    **spec,
):
    """Return (source, samples, events that the source reports)."""
    data, data_spec = digits
    samples = planned(data, data_spec.to_dict(), batch=batch, seed=3, epochs=epochs)
    events = []
    context = SourceContext(
        samples=samples,
        student=student,
        folder=folder,
        pool=pool,
        report=lambda event: events.append((event.KIND, event)),
        stop=stop,
        student_rate=lambda: rate,
        start=start or {"epoch": 0, "done": []},
    )
    served_spec = Served(**{"lt": 20, "ut": 200} | spec)
    if isinstance(pool, PoolInProcess):
        pool.samples[student] = samples
        return ServedSource(served_spec, context, pool.start_reader), samples, events
    return served_spec.build(context), samples, events


@pytest.fixture
def pool_here(deployment, tmp_path, monkeypatch):
    """Makes pools that are in this process (pool_in_process.py)."""
    monkeypatch.setattr(loaded_model, "_MEASURE_S", 0.002)
    pools = []

    def make(deployed=deployment, teachers=0, **options):
        pools.append(PoolInProcess(deployed, tmp_path / f"pool{len(pools)}", **options))
        for _ in range(teachers):
            pools[-1].add_teacher()
        return pools[-1]

    async def connected(config):
        (pool,) = (pool for pool in pools if pool.loop is asyncio.get_running_loop())
        return pool.wires(config)

    monkeypatch.setattr(PoolConnection, "open", connected)
    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def spoilt(deployment, tmp_path):
    """Makes a deployment whose file of weights `change` has altered."""

    def make(change):
        (member,) = deployment.members
        state = load_file(member.weights)
        change(state)
        path = tmp_path / "spoilt.safetensors"
        save_file(state, path)
        member = replace(member, weights=str(path), sha256=file_sha256(path))
        return replace(deployment, members=(member,))

    return make
