"""A run that goes on is paused, saved, changed and given teachers from outside."""

import json
import time

import pytest
import torch
from safetensors.torch import load_file
from tests_support import until

import kdlab
from kdlab.errors import BadInput, SpecError
from kdlab.events.log import select
from kdlab.run.handle.run import resume

SERVED = (
    "soft_labels={type: cluster/served, lt: 64, ut: 256}",
    "teacher_pool={type: cluster/local_pool, teachers: 2, engine: eager}",
)


def started(*overrides, epochs=100_000):
    return kdlab.load(
        "smoke/none", "tracking.enabled=false", f"train.epochs={epochs}", *overrides
    ).start(lambda line: None)


def events(run, kind):
    return list(select(run.folder.events, kind))


def serving(run):
    """Names of the teachers that the student has now."""
    names = {}
    for event in select(
        run.folder.events, "teacher_joined", "teacher_left", "teacher_lost"
    ):
        if event.KIND == "teacher_joined":
            names[event.name] = event
        else:
            names.pop(event.teacher, None)
    return list(names)


def steps(run):
    """Return the student's steps; its teacher may be trained before."""
    return [e.step for e in events(run, "step_logged") if e.member != "teacher"]


@pytest.mark.nightly
def test_paused_it_stands_still_and_goes_on(kdlab_home, elsewhere):
    run = started()
    until(lambda: steps(run))
    run.pause()
    (paused,) = until(lambda: events(run, "paused"))
    before = run.folder.process().cpu_times().user
    time.sleep(1.0)  # what is looked at is that nothing happens meanwhile
    after = run.folder.process().cpu_times().user
    assert after - before < 0.5
    assert max(steps(run)) <= paused.step
    run.checkpoint()
    saved = until(lambda: events(run, "checkpoint_saved"))
    assert saved[-1].step == paused.step
    run.go_on()
    (continued,) = until(lambda: events(run, "continued"))
    assert continued.step == paused.step
    until(lambda: max(steps(run)) > paused.step)
    run.pause()
    until(lambda: len(events(run, "paused")) == 2)
    run.stop()  # also of a paused one
    run.wait(timeout_s=600)
    assert run.state == "stopped"


@pytest.mark.processes
def test_numbers_change_from_the_next_step_on(kdlab_home, elsewhere):
    run = started(
        "soft_labels.type=soft_labels/in_process",
        "teacher={use: teachers/digits_tiny}",
        "train.schedule=constant",
        "train.lr=0.1",
    )
    until(lambda: steps(run))
    names = {knob.name: knob for knob in run.tunables()}
    assert set(names) == {
        "lr_factor", "loss.hard_weight", "loss.soft_weight", "loss.temperature",
        "loss.warm_up_epochs"
    }  # fmt: skip
    assert names["loss.temperature"].range.gt == 0
    run.set(**{"loss.temperature": 2.0, "lr_factor": 0.5})
    (settings_changed,) = until(lambda: events(run, "settings_changed"))
    assert settings_changed.values == {"loss.temperature": 2.0, "lr_factor": 0.5}
    until(lambda: max(steps(run)) > settings_changed.step)
    student_steps = [e for e in events(run, "step_logged") if e.member != "teacher"]
    later = [e.lr for e in student_steps if e.step > settings_changed.step]
    earlier = [e.lr for e in student_steps if e.step <= settings_changed.step]
    assert set(earlier) == {0.1}
    assert set(later) == {0.05}
    assert {k.name: k.value for k in run.tunables()}["loss.temperature"] == 2.0
    run.stop()
    run.wait(timeout_s=600)


@pytest.mark.nightly
def test_what_was_set_still_holds_after_a_resume(kdlab_home, elsewhere):
    run = started("train.schedule=constant", "train.lr=0.1")
    until(lambda: steps(run))
    run.set(lr_factor=0.25)
    run.pause()
    until(lambda: events(run, "settings_changed"))
    until(lambda: events(run, "paused"))
    run.stop()
    run.wait(timeout_s=600)
    count = len(events(run, "step_logged"))
    resume(run.id)
    until(lambda: len(events(run, "step_logged")) > count + 1)  # it is not paused any more
    assert {e.lr for e in events(run, "step_logged")[count:]} == {
        0.025
    }  # from its first step
    run.stop()
    run.wait(timeout_s=600)


@pytest.mark.nightly
def test_bad_orders_are_refused_and_never_sent(kdlab_home, elsewhere):
    run = started("teacher={use: teachers/digits_tiny}", "compare=[in_process]")
    until(lambda: steps(run))
    for values, message in (
        ({"loss.temperature": 0.0}, "loss.temperature"),
        ({"loss.temp": 3.0}, "Nearest: loss.temperature"),
        ({"lr_factor": 0.0}, "must be > 0"),
        ({"loss.hard_weight": float("nan")}, "finite"),
        ({"train.lr": 1.0}, "cannot be set"),
    ):
        with pytest.raises((BadInput, SpecError)) as error:
            run.set(**values)
        assert message in str(error.value), values
    for order in (run.add_teacher, lambda: run.kill_teacher("teacher-0")):
        with pytest.raises(BadInput, match="no teachers of its own"):
            order()
    assert not (run.path / "control.jsonl").exists()
    run.kill()
    assert run.state == "stopped"
    with pytest.raises(BadInput, match="only a running one"):
        run.pause()


@pytest.mark.nightly
def test_before_it_trains_it_takes_no_orders(kdlab_home, elsewhere):
    run = started()
    with pytest.raises(BadInput, match="at the moment"):
        run.pause()
    run.kill()


@pytest.mark.nightly
def test_teachers_and_thresholds_of_a_served_run(kdlab_home, elsewhere, kdlab_cli):
    run = started("teacher={use: teachers/digits_tiny}", *SERVED)
    until(lambda: steps(run))
    code, out, _ = kdlab_cli("control", run.id, "set")
    assert code == 0
    assert "soft_labels.ut = 256" in out
    code, _, err = kdlab_cli("control", run.id, "set", "soft_labels.ut=700")
    assert code == 0, err
    until(
        lambda: [e for e in events(run, "step_logged") if e.figures.get("volume", 0) > 256]
    )
    run.add_teacher()

    def killed():
        """Kill it once it is in the pool, which decides whether this student gets it."""
        if any(e.target == "teacher-2" for e in events(run, "chaos_caused")):
            return True
        run.kill_teacher("teacher-2")
        return False

    until(killed, every_s=2.0)
    assert {(e.kind, e.by) for e in events(run, "chaos_caused")} == {
        ("kill_teacher", "user")
    }

    def gone(kind, order):
        """Send the order until a teacher has gone; it may leave before the order arrives."""
        if any(e.teacher != "teacher-2" for e in events(run, kind)):
            return True
        if serving(run):
            order(serving(run)[0])
        return False

    until(lambda: gone("teacher_lost", run.kill_teacher), every_s=2.0)
    until(lambda: gone("teacher_left", run.drain_teacher), every_s=2.0)
    run.kill_teacher("teacher-9")
    until(lambda: any("No teacher teacher-9" in e.message for e in events(run, "warned")))
    run.stop()
    run.wait(timeout_s=600)
    lost = [e.samples_lost for e in events(run, "epoch_done")]
    assert not any(lost)


@pytest.mark.nightly
def test_all_ranks_of_a_student_turn_at_the_same_step(kdlab_home, elsewhere):
    run = started(
        "aggregation={type: train/aggregation/all_reduce, ranks: 2}",
        "train.schedule=constant",
        "train.lr=0.1",
    )
    until(lambda: steps(run))
    run.pause()
    (paused,) = until(lambda: events(run, "paused"))
    run.set(lr_factor=2.0)
    run.checkpoint()
    (settings_changed,) = until(
        lambda: events(run, "settings_changed")
    )  # in the pause, by all
    assert settings_changed.step == paused.step
    until(lambda: [e for e in events(run, "checkpoint_saved") if e.step == paused.step])
    run.go_on()
    until(lambda: [e for e in events(run, "step_logged") if e.lr == 0.2])
    assert {e.lr for e in events(run, "step_logged") if e.step > paused.step} == {0.2}
    run.pause()
    run.go_on()  # at once: whoever has seen it, all agree
    count = max(steps(run))
    until(lambda: max(steps(run)) > count + 20)
    assert not events(run, "rank_lost")
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped"
    assert json.loads((run.path / "status.json").read_text())["state"] == "stopped"


def student(run):
    (path,) = run.path.rglob("student.safetensors")
    return load_file(path)


@pytest.mark.nightly
@pytest.mark.parametrize("plan", ["tr", "ir"])
def test_a_paused_pipeline_has_the_weights_of_a_quiet_one(kdlab_home, elsewhere, plan):
    # Epochs of more steps than a request is ahead of.
    long = ("train.batch=6", "train.epochs=60")
    words = ("tracking.enabled=false", *long, f"method.plan={plan}")
    run = kdlab.load("smoke/blockwise", *words).start(lambda line: None)
    until(lambda: steps(run))
    assert [knob.name for knob in run.tunables()] == ["lr_factor"]
    run.pause()
    (paused,) = until(lambda: events(run, "paused"))
    time.sleep(0.5)  # what is looked at is that nothing happens meanwhile
    assert max(steps(run)) <= paused.step
    run.checkpoint()
    until(lambda: [e for e in events(run, "checkpoint_saved") if e.step == paused.step])
    run.go_on()
    (continued,) = until(lambda: events(run, "continued"))
    assert continued.step == paused.step
    each = until(lambda: events(run, "epoch_done"))[0].step

    def saved():
        checkpoints = [e.step for e in events(run, "checkpoint_saved")]
        return [step for step in checkpoints if step > paused.step]

    # Without a pause all meet at a step. The last of an epoch is saved anyway: then once more.
    while not any(step % each for step in saved()):
        before = len(saved())
        run.checkpoint()
        until(lambda before=before: len(saved()) > before)
    result = run.wait(timeout_s=600).result
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    quiet = kdlab.load("smoke/blockwise", *words).start(lambda line: None)
    quiet.wait(timeout_s=600)
    weights, quiet_weights = student(run), student(quiet)
    assert weights.keys() == quiet_weights.keys()
    # Rows are summed in the same order whatever happened in between.
    assert all(torch.equal(weights[key], quiet_weights[key]) for key in weights)


@pytest.mark.nightly
def test_the_learning_rate_of_a_pipeline_turns_for_all_blocks(kdlab_home, elsewhere):
    run = kdlab.load(
        "smoke/blockwise",
        "tracking.enabled=false",
        "train.epochs=100000",
        "train.schedule=constant",
        "train.log_every_steps=1",
    ).start(lambda line: None)
    until(lambda: steps(run))
    run.set(lr_factor=2.0)
    (settings_changed,) = until(lambda: events(run, "settings_changed"))
    until(lambda: max(steps(run)) > settings_changed.step + 5)
    rates = {e.lr for e in events(run, "step_logged") if e.step > settings_changed.step + 1}
    assert rates == {0.1}
    run.pause()
    until(lambda: events(run, "paused"))
    run.stop()  # also of a paused one
    run.wait(timeout_s=600)
    assert run.state == "stopped"
    count = max(steps(run))
    again = resume(run.id)
    until(lambda: len(events(run, "settings_changed")) == 2)  # what was set holds
    until(lambda: max(steps(run)) > count)  # the pause does not
    again.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [True, False])
def test_local_models_pause_turn_and_save(kdlab_home, elsewhere, processes):
    settings = {
        "method": {"type": "methods/ensemble", "workers": 2, "processes": processes},
        "aggregation": {"type": "train/aggregation/model_average", "tau": 8},
        "train.epochs": 2000,
        "tracking.enabled": False,
    }
    run = kdlab.load("smoke/ensemble", settings).start(lambda line: None)
    until(lambda: events(run, "round_closed"))
    assert [knob.name for knob in run.tunables()] == [
        "lr_factor"
    ]  # no teacher, no loss of it
    run.pause()
    until(lambda: events(run, "paused"))
    # Workers that are between two rounds end these; then nothing happens any more.
    stable_since, rounds = time.monotonic(), len(events(run, "round_closed"))
    while time.monotonic() - stable_since < 1.5:
        if len(events(run, "round_closed")) != rounds:
            stable_since, rounds = time.monotonic(), len(events(run, "round_closed"))
            assert rounds < 2000
        time.sleep(0.05)
    run.set(lr_factor=0.5)
    settings_changed = until(lambda: events(run, "settings_changed"))
    assert settings_changed[0].values == {"lr_factor": 0.5}
    run.checkpoint()
    run.go_on()
    until(lambda: events(run, "continued"))
    until(lambda: events(run, "checkpoint_saved"))
    until(lambda: len(events(run, "round_closed")) > rounds)
    run.pause()
    until(lambda: len(events(run, "paused")) > len(events(run, "continued")))
    run.stop()  # also of a paused one
    run.wait(timeout_s=600)
    assert run.state == "stopped"
    rounds = len(events(run, "round_closed"))
    again = resume(run.id)
    until(lambda: len(events(run, "round_closed")) > rounds)
    again.kill()


SOURCES = {
    "plain": ("smoke/none", ()),
    "served": (
        "smoke/served",
        ("soft_labels.order=strict", "soft_labels.ut=256", "teacher_pool.engine=eager"),
    ),
    "ranks": (
        "smoke/none",
        ("aggregation={type: train/aggregation/all_reduce, ranks: 2}",),
    ),
    "blocks": ("smoke/blockwise", ()),
}


@pytest.mark.nightly
@pytest.mark.parametrize("how", SOURCES)
def test_taken_back_it_has_the_weights_of_a_quiet_one(kdlab_home, elsewhere, how):
    name, overrides = SOURCES[how]
    words = ("tracking.enabled=false", "train.batch=6", "train.epochs=40", *overrides)

    def begun():
        return kdlab.load(name, *words).start(lambda line: None)

    def student_events(kind):
        """Return the student's events; its teacher may be trained before."""
        return [e for e in events(run, kind) if e.member != "teacher"]

    run = begun()
    until(lambda: student_events("epoch_done"))
    run.checkpoint()
    until(lambda: student_events("checkpoint_saved"))
    run.set(lr_factor=2.0)  # with 40 the loss of blocks became infinite, which ends a run
    (settings_changed,) = until(lambda: events(run, "settings_changed"))
    until(lambda: max(steps(run)) > settings_changed.step + 20)
    step = run.back()
    assert step <= settings_changed.step
    result = run.wait(timeout_s=600).result
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    assert result["samples_rolled_back"] >= 20 * 6
    (taken,) = events(run, "settings_reverted")
    assert (taken.step, taken.values) == (step, {"lr_factor": 1.0})
    quiet = begun()
    quiet.wait(timeout_s=600)
    weights, quiet_weights = student(run), student(quiet)
    assert all(torch.equal(weights[key], quiet_weights[key]) for key in weights)


@pytest.mark.nightly
def test_local_models_have_no_one_way_back(kdlab_home, elsewhere):
    run = kdlab.load("smoke/ensemble", "tracking.enabled=false", "train.epochs=4000")
    run = run.start(lambda line: None)
    until(lambda: events(run, "round_closed"))
    run.set(lr_factor=0.5)
    until(lambda: events(run, "settings_changed"))
    with pytest.raises(BadInput, match="each has its own"):
        run.back()
    run.kill()


@pytest.mark.nightly
def test_chaos_from_a_notebook_hits_a_pool_that_lets_nobody_else_in(kdlab_home, elsewhere):
    """The pool's certificates belong to the run; whoever can read them can connect."""
    run = started(*SERVED, "teacher_pool.replace_lost=true")
    until(lambda: serving(run))
    hits = []
    trouble = kdlab.chaos(run, report=hits.append, kill_teacher=1, every_s=1, events=100)
    until(lambda: hits)
    trouble.stop()
    assert hits[0].kind == "kill_teacher"
    before = len(steps(run))
    until(lambda: len(steps(run)) > before)  # another teacher, or the one that came back
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped"
    assert not any(e.samples_lost for e in events(run, "epoch_done"))
