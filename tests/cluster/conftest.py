"""A real pool: a Dask scheduler and teachers, each a process of its own."""

import contextlib

import pytest
from tests_support import until

from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.served import Served
from kdlab.cluster.wires.wire import ask
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.samples import planned
from kdlab.events.event import unheard
from kdlab.experiment.deployed import deployment_of
from kdlab.soft_labels.source import SourceContext
from kdlab.train.teacher import PreparedTeachers, TeacherSpec, prepare


@pytest.fixture(scope="session")
def teacher(kdlab_home):
    spec = construct(TeacherSpec, compose_card("teachers/digits_tiny"))
    return PreparedTeachers((prepare(spec, unheard),))


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
    """Makes served sources on a pool, with a record of what they report."""
    with contextlib.ExitStack() as stack:

        def make(
            pool,
            *,
            epochs=3,
            batch=20,
            start=None,
            rate=500.0,
            stop=lambda: False,
            student="test",
            **spec,
        ):
            data, data_spec = digits
            samples = planned(data, data_spec.to_dict(), batch=batch, seed=3, epochs=epochs)
            events = []
            context = SourceContext(
                samples=samples,
                student=student,
                folder=tmp_path,
                pool=pool,
                report=lambda event: events.append((event.KIND, event)),
                stop=stop,
                student_rate=lambda: rate,
                start=start or {"epoch": 0, "done": []},
            )
            source = Served(**{"lt": 20, "ut": 200} | spec).build(context)
            stack.callback(source.close)
            return source, samples, events

        yield make
