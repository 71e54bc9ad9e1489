"""The teacher's first blocks from a pool of real processes, under a pipeline."""

import json

import pytest
from safetensors.torch import load_file

import kdlab
from kdlab.events.log import select
from kdlab.run.handle.run import resume

pytestmark = pytest.mark.slow("a pool of teachers and two ranks, each a Python with torch")

SERVED = (
    "method.prefix={blocks: 2, source: {type: cluster/served, lt: 64, ut: 256}}",
    "teacher_pool={type: cluster/local_pool, teachers: 2}",
)


def experiment(*overrides):
    return kdlab.load(
        "smoke/blockwise", "tracking.enabled=false", "method.profile_s=0.5", *overrides
    )


def weights(run, member="tr"):
    return load_file(run.path / "members" / member / "seed0" / "student.safetensors")


def apart(one, two):
    assert one.keys() == two.keys()
    return max(float((one[k].double() - two[k].double()).abs().max()) for k in one)


def test_served_blocks_train_the_same_student_and_no_sample_is_lost(kdlab_home, elsewhere):
    plain = experiment().start().wait(timeout_s=600)
    run = experiment(
        *SERVED,
        "method.prefix.serve=always",
        "method.compare=[tr, ir, ls]",
        "method.prefix.source.inputs=value_uint8",
    )
    run = run.start().wait(timeout_s=600)
    assert run.state == "finished", run.status
    rows = {row["source"]: row for row in run.result["runs"]}
    for name, served in (("tr", 2), ("ir", 2), ("ls", 0)):
        folder = run.path / "members" / name / "seed0"
        plan = json.loads((folder / "plan.json").read_text())
        assert plan["programme"]["served"] == served, name
        assert rows[name]["samples_lost"] == rows[name]["samples_repeated"] == 0
        # Teachers compute in batches of their own, so sums differ in the last bits.
        assert apart(weights(plain), weights(run, name)) < 2e-3, name
    (tr, _, _) = (e["programme"] for e in select(run.folder.events, "plan"))
    assert "as told" in tr["why"] or "pays" in tr["why"]
    assert len(list(select(run.folder.events, "pool_ready"))) == 1


@pytest.mark.nightly
def test_the_planner_says_why_it_does_not_serve(kdlab_home, elsewhere):
    """One slow teacher on two busy cores, for blocks that cost next to nothing."""
    slow = "teacher_pool={type: cluster/emulated_pool, teachers: 1, t_t: 40}"
    run = experiment(SERVED[0], slow).start().wait(timeout_s=600)
    assert run.state == "finished", run.status
    (plan,) = (e["programme"] for e in select(run.folder.events, "plan"))
    assert plan["served"] == 0
    assert "does not pay" in plan["why"]
    assert "rows/s" in plan["why"]


@pytest.mark.nightly
def test_a_stop_and_a_lost_teacher_lose_nothing(kdlab_home, elsewhere):
    options = (*SERVED, "method.prefix.serve=always", "train.epochs=6", "train.batch=8")
    run = experiment(*options, "chaos={every_s: 3.0, events: 6, kill_teacher: 1}").start()
    seen = run.events(follow=True)
    next(e for e in seen if e["event"] == "step" and e["epoch"] >= 1)
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped", run.status
    resume(run.id).wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
