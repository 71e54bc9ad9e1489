"""Pools of a run: started when they are asked for, once, with what their teachers must know."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_experiments import ScriptedPool

from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.pool import ComputingPoolSpec
from kdlab.cluster.teachers.probe import identity_of, probe_images
from kdlab.config import register
from kdlab.experiment.deployed import deployment_of
from kdlab.experiment.pools import Pools
from kdlab.experiment.setup import TrainingSetup
from kdlab.train.teacher import PreparedTeachers

HINT = [{"type": "features/hint", "teacher": "blocks.2", "student": "blocks.2"}]
STARTED = []  # (deployment, folder, pool) of each start


class ScriptedServing(ScriptedPool):
    def wait(self, stop=lambda: False):
        self.stop = stop
        return PoolStatus(deployed="f", expired=0, renewals=0, students={}, teachers=())


@register("cluster/scripted_pool_of_tests")
@dataclass(frozen=True, kw_only=True)
class ScriptedPools(ComputingPoolSpec):
    """A pool that starts nothing, and records what it was to serve."""

    def parts(self, folder):
        raise AssertionError

    def start(self, deployment, folder):
        STARTED.append((deployment, folder, ScriptedServing()))
        return STARTED[-1][2]


@pytest.fixture
def pools_of(spec, run_of, kdlab_home):
    """Makes the pools of a served experiment: (pools, setup, events)."""
    STARTED.clear()

    def make(**changes):
        pool = {"type": "cluster/scripted_pool_of_tests"}
        shared, others = changes.pop("shared", None), changes.pop("others", False)
        setup = TrainingSetup(spec("smoke/served", teacher_pool=pool, **changes))
        events = []
        run = run_of(setup.spec)
        stop = lambda: False  # noqa: E731
        return Pools(run, setup, events.append, stop, shared, others=others), setup, events

    return make


def test_a_pool_is_started_once_for_all_who_need_it(pools_of):
    pools, _, events = pools_of()
    assert STARTED == []  # nobody has asked
    first = pools.teacher_pool()
    assert pools.teacher_pool() is first
    ((_, folder, pool),) = STARTED
    assert folder == pools.run.path / "pool"
    assert [e.KIND for e in events] == ["pool_starting", "pool_ready"]
    assert events[0].pool == "cluster/scripted_pool_of_tests"
    assert events[1].address == pool.address
    local_models = pools.start("local_models", pools._deployment)
    assert local_models is not first
    pools.close()
    assert [pool.closed for _, _, pool in STARTED] == [1, 1]


def test_a_shared_pool_is_used_and_left_open(pools_of):
    shared = ScriptedServing()
    pools, _, events = pools_of(shared=shared)
    assert pools.teacher_pool() is shared
    pools.close()
    assert (shared.closed, STARTED, events) == (0, [], [])


def test_teachers_are_told_model_data_and_the_answers_that_prove_them(pools_of):
    pools, setup, _ = pools_of(train__batch=24)
    pools.teacher_pool()
    ((deployment, _, _),) = STARTED
    (teacher,) = setup.teacher.members
    assert [m.sha256 for m in deployment.members] == [teacher.sha256]
    assert deployment.members[0].weights == str(teacher.weights)
    assert deployment.members[0].model.get("weights") is None  # they are fetched
    assert (deployment.num_classes, deployment.batch) == (10, 24)
    assert deployment.shape == setup.data.shape
    assert deployment.identity == identity_of(setup.data)
    assert deployment.data == setup.spec.data.to_dict()
    assert (deployment.by_reference, deployment.or_value) == (True, False)
    assert deployment.teacher == f"{teacher.fingerprint}+auto"  # engines answer otherwise
    assert deployment.combination is None
    assert deployment.engine == "auto"  # as the pool says
    answers = setup.load_teacher().infer(torch.from_numpy(probe_images(deployment.shape)))
    assert np.allclose(deployment.reference, answers.numpy())


@pytest.mark.parametrize(
    ("changes", "shared"),
    [({}, False), ({"seeds": [0, 1]}, True), ({"others": True}, True)],
    ids=("lone student", "two seeds", "trials of a sweep"),
)
def test_answers_are_kept_where_somebody_may_ask_again(pools_of, changes, shared):
    """A lone student's teacher filled 256 MB with answers that nobody ever asked for."""
    pools, _, _ = pools_of(**changes)
    pools.teacher_pool()
    ((deployment, _, _),) = STARTED
    assert deployment.share_answers is shared


@pytest.mark.parametrize(
    ("inputs", "ways"), [("value_uint8", (False, False)), ("auto", (True, True))]
)
def test_pixels_are_sent_where_the_source_says_so(pools_of, inputs, ways):
    pools, _, _ = pools_of(soft_labels__inputs=inputs)
    pools.teacher_pool()
    ((deployment, _, _),) = STARTED
    assert (deployment.by_reference, deployment.or_value) == ways


def test_inner_outputs_are_served_behind_the_logits(pools_of):
    pools, setup, _ = pools_of(features=HINT)
    pools.teacher_pool()
    ((deployment, _, _),) = STARTED
    _, _, row, fingerprint = setup.tapped()
    assert deployment.teacher == fingerprint
    assert deployment.num_classes == row > 10
    assert deployment.engine == "eager"  # others are held to probabilities
    assert deployment.members[0].model["type"] == "models/with_features"
    assert np.array(deployment.reference).shape == (4, min(deployment.num_classes, 1024))


def test_hidden_states_are_what_the_head_makes_logits_of(pools_of):
    pools, setup, _ = pools_of(soft_labels__sends="hidden")
    pools.teacher_pool()
    ((deployment, _, _),) = STARTED
    assert deployment.teacher == f"{setup.teacher.members[0].fingerprint}-hidden"
    assert deployment.num_classes == 16
    assert deployment.engine == "eager"
    assert deployment.members[0].model["type"] == "models/headless"
    _, head = setup.teacher_head
    logits = setup.load_teacher().infer(torch.from_numpy(probe_images(deployment.shape)))
    hidden = torch.tensor(deployment.reference, dtype=torch.float32)
    assert torch.allclose(head(hidden), logits, atol=1e-5)


def test_what_pool_and_source_say_reaches_the_deployment(spec, kdlab_home):
    setup = TrainingSetup(spec("smoke/in_process"))
    parts = {"x": {"source": "x = 1", "sha256": "s"}}
    deployment = deployment_of(
        setup.teacher, setup.data, data_spec={"type": "d"}, batch=8, components=parts,
        by_reference=False, or_value=True, reference=((1.0,),),
    )  # fmt: skip
    assert (deployment.components, deployment.data) == (parts, {"type": "d"})
    assert (deployment.by_reference, deployment.or_value) == (False, True)
    assert deployment.reference == ((1.0,),)


def test_several_teachers_are_told_how_they_are_one(spec, kdlab_home, teacher_card):
    two = [teacher_card, teacher_card | {"weight": 3.0}]
    setup = TrainingSetup(spec("smoke/in_process", teacher=two))
    plain = deployment_of(setup.teacher, setup.data, data_spec={}, batch=8)
    assert [m.weight for m in plain.members] == [1.0, 3.0]
    assert plain.combination is None  # the weights of the members say it
    best = PreparedTeachers(setup.teacher.members, "best")
    deployment = deployment_of(best, setup.data, data_spec={}, batch=8)
    assert deployment.combination == best.combination
    assert deployment.teacher != plain.teacher


def test_orders_for_teachers_are_heard_while_a_pool_on_this_machine_is_up(
    pools_of, local_pool, monkeypatch
):
    pool = local_pool()
    pool.wait = lambda stop: PoolStatus(
        deployed="f", expired=0, renewals=0, students={}, teachers=()
    )
    monkeypatch.setattr(ScriptedPools, "start", lambda self, deployment, folder: pool)
    pools, _, _ = pools_of()
    pools.teacher_pool()
    (orders,) = pools._changes
    assert orders._keeper.is_alive()
    pools.close()
    assert not orders._keeper.is_alive()


def test_ranks_are_started_here_unless_workers_are_named(pools_of):
    pools, _, _ = pools_of()
    assert pools.hosts is None
    pools.close()  # there is nothing to close
