"""A run that goes on is paused, saved, changed and given teachers from outside."""

import json
import time

import psutil
import pytest
from tests_support import until

import kdlab
from kdlab.errors import BadInput, SpecError
from kdlab.train.events import read_all, select

pytestmark = pytest.mark.timeout(230)

SERVED = (
    "soft_labels={type: cluster/served, lt: 64, ut: 256}",
    "teacher_pool={type: cluster/local_pool, teachers: 2}",
)


def started(*overrides, epochs=100_000):
    return kdlab.load(
        "smoke/none", "tracking.enabled=false", f"train.epochs={epochs}", *overrides
    ).start(lambda line: None)


def events(run, kind):
    return list(select(run.folder.events, kind))


def steps(run):
    """Of the student; its teacher may be trained before."""
    return [e["step"] for e in events(run, "step") if e["member"] != "teacher"]


def test_paused_it_stands_still_and_goes_on(kdlab_home, elsewhere):
    run = started()
    until(lambda: steps(run))
    run.pause()
    (paused,) = until(lambda: events(run, "paused"))
    asked = next(o["time"] for o in read_all(run.path / "control.jsonl"))
    assert paused["time"] - asked < 2.0  # 0.1 s where nothing else goes on
    before = psutil.Process(run.status["pid"]).cpu_times().user
    time.sleep(1.0)  # what is looked at is that nothing happens meanwhile
    after = psutil.Process(run.status["pid"]).cpu_times().user
    assert after - before < 0.5
    assert max(steps(run)) <= paused["step"]
    run.checkpoint()
    saved = until(lambda: events(run, "checkpoint_saved"))
    assert saved[-1]["step"] == paused["step"]
    run.go_on()
    (went_on,) = until(lambda: events(run, "went_on"))
    assert went_on["step"] == paused["step"]
    until(lambda: max(steps(run)) > paused["step"])
    run.pause()
    until(lambda: len(events(run, "paused")) == 2)
    run.stop()  # also of a paused one
    run.wait(timeout_s=60)
    assert run.state == "stopped"


def test_numbers_change_from_the_next_step_on(kdlab_home, elsewhere):
    run = started(
        "soft_labels.type=soft_labels/in_process",
        "teacher={use: teachers/digits_tiny}",
        "train.schedule=constant",
        "train.lr=0.1",
    )
    until(lambda: steps(run))
    names = {knob.name: knob for knob in run.knobs()}
    assert set(names) == {
        "lr_factor", "loss.hard_weight", "loss.soft_weight", "loss.temperature"
    }  # fmt: skip
    assert names["loss.temperature"].range.gt == 0
    run.set(**{"loss.temperature": 2.0, "lr_factor": 0.5})
    (steered,) = until(lambda: events(run, "steered"))
    assert steered["values"] == {"loss.temperature": 2.0, "lr_factor": 0.5}
    until(lambda: max(steps(run)) > steered["step"])
    own = [e for e in events(run, "step") if e["member"] != "teacher"]
    later = [e["lr"] for e in own if e["step"] > steered["step"]]
    earlier = [e["lr"] for e in own if e["step"] <= steered["step"]]
    assert set(earlier) == {0.1}
    assert set(later) == {0.05}
    assert {k.name: k.value for k in run.knobs()}["loss.temperature"] == 2.0
    run.stop()
    run.wait(timeout_s=60)


def test_what_was_set_still_holds_after_a_resume(kdlab_home, elsewhere):
    from kdlab.run.handle import resume

    run = started("train.schedule=constant", "train.lr=0.1")
    until(lambda: steps(run))
    run.set(lr_factor=0.25)
    run.pause()
    until(lambda: events(run, "steered"))
    until(lambda: events(run, "paused"))
    run.stop()
    run.wait(timeout_s=60)
    count = len(events(run, "step"))
    resume(run.id)
    until(lambda: len(events(run, "step")) > count + 1)  # it is not paused any more
    assert {e["lr"] for e in events(run, "step")[count:]} == {0.025}  # from its first step
    run.stop()
    run.wait(timeout_s=60)


def test_bad_orders_are_refused_and_never_sent(kdlab_home, elsewhere):
    run = started("teacher={use: teachers/digits_tiny}", "compare=[in_process]")
    until(lambda: steps(run))
    for values, said in (
        ({"loss.temperature": 0.0}, "loss.temperature"),
        ({"loss.temp": 3.0}, "Nearest: loss.temperature"),
        ({"lr_factor": 0.0}, "must be > 0"),
        ({"loss.hard_weight": float("nan")}, "finite"),
        ({"train.lr": 1.0}, "cannot be set"),
    ):
        with pytest.raises((BadInput, SpecError)) as error:
            run.set(**values)
        assert said in str(error.value), values
    for order in (run.add_teacher, lambda: run.kill_teacher("teacher-0")):
        with pytest.raises(BadInput, match="no teachers of its own"):
            order()
    assert not (run.path / "control.jsonl").exists()
    run.kill()
    until(lambda: run.state == "lost")
    with pytest.raises(BadInput, match="only a running one"):
        run.pause()
    ensemble = kdlab.load("smoke/ensemble", "tracking.enabled=false").start()
    with pytest.raises(BadInput, match="only train/student"):
        ensemble.pause()
    ensemble.kill()


def test_before_it_trains_it_takes_no_orders(kdlab_home, elsewhere):
    run = started()
    with pytest.raises(BadInput, match="at the moment"):
        run.pause()
    run.kill()


@pytest.mark.slow
def test_teachers_and_thresholds_of_a_served_run(kdlab_home, elsewhere, kdlab_cli):
    run = started("teacher={use: teachers/digits_tiny}", *SERVED)
    until(lambda: steps(run))
    code, out, _ = kdlab_cli("control", run.id, "set")
    assert code == 0
    assert "soft_labels.ut = 256" in out
    code, _, err = kdlab_cli("control", run.id, "set", "soft_labels.ut=700")
    assert code == 0, err
    until(lambda: [e for e in events(run, "step") if e.get("volume", 0) > 256])
    run.add_teacher()
    until(lambda: any(e["name"] == "teacher-2" for e in events(run, "teacher_joined")))
    run.kill_teacher("teacher-2")
    (chaos,) = until(lambda: events(run, "chaos"))
    assert (chaos["kind"], chaos["by"]) == ("kill_teacher", "user")
    until(lambda: events(run, "teacher_lost"))
    run.drain_teacher("teacher-1")
    until(lambda: events(run, "teacher_left"))
    run.kill_teacher("teacher-9")
    until(
        lambda: any("no teacher teacher-9" in e["message"] for e in events(run, "warning"))
    )
    run.stop()
    run.wait(timeout_s=60)
    lost = [e["samples_lost"] for e in events(run, "epoch_done")]
    assert not any(lost)


@pytest.mark.slow
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
    (steered,) = until(lambda: events(run, "steered"))  # in the pause, by all
    assert steered["step"] == paused["step"]
    until(
        lambda: [e for e in events(run, "checkpoint_saved") if e["step"] == paused["step"]]
    )
    run.go_on()
    until(lambda: [e for e in events(run, "step") if e["lr"] == 0.2])
    assert {e["lr"] for e in events(run, "step") if e["step"] > paused["step"]} == {0.2}
    run.pause()
    run.go_on()  # at once: whoever has seen it, all agree
    count = max(steps(run))
    until(lambda: max(steps(run)) > count + 20)
    assert not events(run, "rank_lost")
    run.stop()
    run.wait(timeout_s=60)
    assert run.state == "stopped"
    assert json.loads((run.path / "status.json").read_text())["state"] == "stopped"
