"""Texts and tables of the live view beside its curves, from the events of a run only."""

import json

import pytest
from tests_support import event

from kdlab.events.run_state import TrainingState
from kdlab.notebook import live_state, picture
from kdlab.notebook.watch import Watch

STEP = {"member": "served/seed0", "of_steps": 100, "samples_per_second": 500.0}


def trained(starved_each=0.0, teachers=2, steps=20, wire_each=0.05, *, shares=False):
    """A run whose student waited so many seconds of each second."""
    watch = Watch()
    watch.apply(
        event("run_started", 0.0, experiment="e", members=["none/seed0", "served/seed0"])
    )
    began = {"member": "served/seed0", "source": "served", "shares_cores": shares}
    watch.apply(event("member_started", 0.0, seed=0, **began))
    watch.apply(event("scheduled", 0.0, t_s=900.0, t_t=100.0, n=9, got=2))
    for k in range(teachers):
        watch.apply(event("teacher_joined", 0.0, name=f"t{k}", t_t=100.0))
    for k in range(1, steps + 1):
        watch.apply(
            event(
                "step_logged",
                float(k),
                step=k,
                epoch=0,
                loss=1.0,
                starved_s=k * starved_each,
                queued_s=k * 0.3,
                computed_s=k * 0.1,
                wire_s=k * wire_each,
                **STEP,
            )
        )
    return watch


def test_who_is_the_bottleneck():
    fast = live_state.verdict(trained(0.01), "r")
    assert fast["tone"] == "good"
    assert "it waits 1% of its time" in fast["text"]
    slow = live_state.verdict(trained(0.5), "r")
    assert slow["tone"] == "warn"
    assert "(2 teachers, up to 200 samples/s in total" in slow["text"]
    assert "30%" not in slow["text"]
    assert "67% queued at teachers, 0% waiting for views, 22% computed" in slow["text"]
    wire = live_state.verdict(trained(0.5, wire_each=1.6), "r")
    assert wire["text"].startswith("The wire is the bottleneck: the student waits 50%")
    assert live_state.verdict(trained(0.5, teachers=0), "r") is None


def test_what_a_setting_holds_back_is_no_want_of_teachers():
    watch = trained(0.5)
    watch.apply(event("threshold_limits", 21.0, ut=64, enough=256))
    assert "set soft_labels.ut=256" in live_state.verdict(watch, "r")["text"]


def test_the_end_says_what_to_do():
    watch = trained()
    watch.apply(event("run_done", 30.0, state="failed", error="no space is left"))
    verdict = live_state.verdict(watch, "r1")
    assert verdict["tone"] == "bad"
    assert "no space is left" in verdict["text"]
    assert "kdlab resume r1" in verdict["text"]
    assert not watch.now.teachers.serving


def test_samples_that_were_not_trained_on_are_said_in_the_end():
    watch = trained()
    row = {"member": "ec/seed0", "samples_seen": 60, "samples_lost": 40}
    watch.apply(event("run_done", 30.0, state="finished", result={"runs": [row]}))
    verdict = live_state.verdict(watch, "r1")
    text = "40 of 100 samples of ec/seed0 were not trained on."
    assert verdict == {"tone": "bad", "text": text}
    row["without"] = "3 of 4 rounds went without worker 2"
    watch.apply(event("run_done", 30.0, state="finished", result={"runs": [row]}))
    text = f"3 of 4 rounds went without worker 2: {text}"
    assert live_state.verdict(watch, "r1") == {"tone": "bad", "text": text}


def test_a_comparison_ends_with_its_verdict():
    watch = trained()
    judged = {"kind": "helped", "sentence": "the teacher helped by 18.1 points"}
    watch.apply(event("run_done", 30.0, state="finished", result={"verdict": judged}))
    verdict = live_state.verdict(watch, "r1")
    assert verdict == {"tone": "good", "text": judged["sentence"]}
    assert judged["sentence"] in picture.static(watch)
    row = {"member": "served/seed0", "samples_seen": 60, "samples_lost": 40}
    result = {"runs": [row], "verdict": judged}
    watch.apply(event("run_done", 31.0, state="finished", result=result))
    lost = "40 of 100 samples of served/seed0 were not trained on."
    both = {"tone": "bad", "text": f"{lost}\n{judged['sentence']}"}
    assert live_state.verdict(watch, "r1") == both


@pytest.mark.parametrize(
    ("validated", "taken"),
    [((80.0, 90.0, 70.0), ["", "seed 0"]), ((80.0, 80.0, 80.0), ["", "seed 0"]),
     ((91.0, 90.0, 70.0), ["seed 0", ""]), ((80.0, 90.0, 95.0), ["", "seed 1"]),
     ((99.0, None, None), ["", "seed 0"])],
)  # fmt: skip
def test_what_each_training_came_to_is_a_table(validated, taken):
    watch = trained()
    assert live_state.results(watch) == []
    rows = [
        {"source": source, "seed": seed, "student_top1": top1, "validation_top1": best,
         "samples_lost": 0}
        for (source, seed, top1), best in zip(
            [("none", 0, 88.0), ("served", 0, 91.0), ("served", 1, 92.0)], validated, strict=True)
    ]  # fmt: skip
    result = {"runs": rows, "source": "served", "teacher_top1": 94.25}
    watch.apply(event("run_done", 30.0, state="finished", result=result))
    head, *table = live_state.results(watch)
    assert [row[-1] for row in table] == taken
    assert [row[1:4] for row in table] == [
        ["0", "88.00", "-"],
        ["0, 1", "91.50 ± 0.71", "94.25"],
    ]
    assert head[-1] == "exported"
    assert "91.50 ± 0.71" in picture.static(watch)


def test_no_teacher_is_said_until_one_joins():
    watch = trained()
    watch.apply(
        event("all_teachers_lost", 21.0, unplaced=64, wait_s=60.0, join="kdlab teacher x")
    )
    assert "kdlab teacher x" in live_state.verdict(watch, "r")["text"]
    watch.apply(event("teacher_joined", 22.0, name="t9", t_t=100.0))
    assert live_state.verdict(watch, "r")["tone"] == "good"


def test_time_left_is_that_of_the_newest_pace_without_pauses():
    watch = trained()
    assert watch.seconds_left() == 80.0
    watch.apply(event("paused", 21.0, step=20))
    assert watch.seconds_left() is None
    watch.apply(event("continued", 1000.0, step=20))
    for k in range(21, 30):  # at half the speed
        at = 1000.0 + 2 * (k - 20)
        watch.apply(
            event("step_logged", at, step=k, epoch=0, loss=1.0, starved_s=0.0, **STEP)
        )
    assert watch.seconds_left() == 71 * 2.0


def test_lanes_say_when_each_teacher_served():
    watch = trained()
    watch.apply(event("teacher_lost", 21.0, teacher="t0", why="killed", resent=3))
    watch.apply(event("teacher_joined", 25.0, name="t0", t_t=50.0))
    shown = live_state.of_run(watch, "r")
    (lane,) = [teacher for teacher in shown["teachers"] if teacher["name"] == "t0"]
    assert lane["spans"] == [
        (0.0, 21.0, "assigned"),
        (21.0, 25.0, "lost"),
        (25.0, None, "assigned"),
    ]
    assert (lane["rate"], lane["resends"]) == (50.0, 3)
    assert [mark["text"] for mark in shown["marks"]] == ["t0 is lost: killed", "t0 joined"]
    json.dumps(shown)


def test_of_a_thousand_teachers_those_that_serve_are_shown():
    watch = trained(teachers=1000)
    for k in range(990):
        watch.apply(
            event("teacher_lost", 21.0 + k, teacher=f"t{k}", why="killed", resent=0)
        )
    shown = live_state.of_run(watch, "r")["teachers"]
    assert len(shown) == 100
    assert {f"t{k}" for k in range(989, 1000)} <= {teacher["name"] for teacher in shown}


def test_speeds_on_shared_cores_are_called_so_and_stand_beside_no_others():
    separate, shared = trained(0.5), trained(0.5, shares=True)
    assert ["speed", "500 samples/s"] in live_state.head(separate)["facts"]
    assert ["speed (cores shared)", "500 samples/s"] in live_state.head(shared)["facts"]
    assert "without a teacher" in live_state.verdict(separate, "r")["text"]
    assert "without a teacher" not in live_state.verdict(shared, "r")["text"]
    plain = Watch(now=TrainingState(source="none"))
    pairs = ({"a": separate, "b": plain}, True), ({"a": shared, "b": plain}, False)
    for pair, drawn in pairs:
        titles = [panel["title"] for panel in live_state.of_runs(pair)["panels"]]
        assert ("speed" in titles) is drawn
        assert ("speed" in [panel.title for panel in picture.panels(pair)]) is drawn


def test_several_runs_are_one_state():
    shown = live_state.of_runs({"a": trained(), "b": trained(steps=40)})
    assert (shown["done"], shown["of"]) == (60, 200)
    assert [run["label"] for run in shown["runs"]] == ["a", "b"]
    assert "training 2 of 2" in shown["runs"][0]["progress"]
    json.dumps(shown)


def test_findings_of_checks_are_shown_the_worst_first():
    watch = trained()
    for code, result in (("KD-D08", "tip"), ("KD-R08", "issue"), ("KD-D01", "passed")):
        texts = {"found": "what & why", "advice": "Do it"} if result != "passed" else {}
        watch.apply(event("check_made", 9.0, code=code, result=result, title="t", **texts))
    assert live_state.of_run(watch, "r1")["checks"] == [
        ["issue", "KD-R08", "what & why", "Do it"],
        ["tip", "KD-D08", "what & why", "Do it"],
        ["passed", "KD-D01", "t", ""],
    ]
    still = picture.static(watch)
    assert "KD-R08" in still
    assert "what &amp; why" in still
    assert "1 checks passed" in still
