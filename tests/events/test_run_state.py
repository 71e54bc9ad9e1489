"""One state of a run for whoever shows it: sessions, undone steps, parts, teachers."""

import io

import pytest
from rich.console import Console
from tests_support import event

from kdlab.events.curve import thinned
from kdlab.events.log import parse
from kdlab.events.run_state import (
    COUNT,
    LOSS,
    MACHINE,
    MEMORY,
    SECONDS,
    SPEED,
    TOP1,
    run_state,
)
from kdlab.events.teacher_rows import TeacherRows
from kdlab.notebook.watch import Watch
from kdlab.report.progress import Progress


def of_m(kind, time, **rest):
    return event(kind, time, "m", **rest)


def step(time, number, loss, **rest):
    return of_m(
        "step_logged",
        time,
        step=number,
        of_steps=10,
        loss=loss,
        samples_seen=10 * number,
        **rest,
    )


RESUMED = [
    of_m("run_started", 0),
    of_m("member_started", 10, source="served", seed=0),
    of_m("teacher_joined", 10, name="t0"),
    step(12, 2, 3.0),
    step(14, 4, 2.0),
    # killed here; an hour later it goes on from step 2
    of_m("run_started", 3614),
    of_m("member_started", 3615, source="served", seed=0),
    of_m("resumed", 3616, epoch=0, step=2),
    of_m("teacher_joined", 3617, name="t0"),
    step(3618, 4, 1.0),
]


def test_thinned_curves_keep_their_end_and_mean():
    points = [(float(k), float(k)) for k in range(1001)]
    few = thinned(points, 100)
    assert len(few) <= 101
    assert few[-1] == points[-1]
    assert abs(few[50][0] - few[50][1]) < 1e-9
    assert thinned(points[:5], 100) == points[:5]


def used(time, cpu, gpus=()):
    return event("machine_used", time, None, cpu=cpu, memory=cpu / 10, gpus=list(gpus))


def test_what_a_run_takes_is_drawn_over_steps_and_undone_with_them():
    events = [
        *RESUMED[:3],
        used(11, 90.0),  # no step is done yet
        step(12, 2, 3.0),
        used(13, 50.0, [(20.0, 3.0)]),
        used(18, 60.0),  # no step since: it waits
        step(19, 4, 2.0),
        used(20, 70.0),
    ]
    before = run_state(events).now
    assert list(before.curves[MACHINE, "CPU"]) == [(2.0, 50.0), (4.0, 70.0)]
    assert list(before.curves[MEMORY, "processes"]) == [(2.0, 5.0), (4.0, 7.0)]
    assert list(before.curves[MACHINE, "GPU 0"]) == [(2.0, 20.0)]
    assert list(before.curves[MEMORY, "GPU 0"]) == [(2.0, 3.0)]
    assert before.undone == 0
    assert before.panels == [LOSS, SPEED]  # those of a picture
    after = run_state([*events, of_m("resumed", 21, epoch=0, step=2), used(22, 80.0)]).now
    assert list(after.curves[MACHINE, "CPU"]) == [(2.0, 50.0)]


def test_taken_back_its_teachers_are_none_of_the_next_reader_until_they_join():
    taken = [*RESUMED[:5], of_m("settings_reverted", 15, step=2, values={})]
    assert not run_state(taken).now.teachers.serving
    state = run_state([*taken, of_m("teacher_joined", 16, name="t1")])
    assert [row.name for row in state.now.teachers.serving] == ["t1"]


def test_time_between_sessions_and_undone_steps_do_not_count():
    state = run_state([*RESUMED, of_m("member_done", 3620), event("run_done", 9999.0)])
    training = state.trainings["m"]
    assert training.over(COUNT)[LOSS, "loss"] == [(20.0, 3.0), (40.0, 1.0)]
    assert training.over(SECONDS)[LOSS, "loss"] == [(2.0, 3.0), (8.0, 1.0)]
    assert training.seconds == 10  # what comes after its end is none of it
    assert training.teachers.served_s == 4 + 3
    spans = training.teachers.rows["t0"].spans
    assert [how for _, _, how in spans] == ["assigned", "ended"] * 2


def test_after_a_resume_terminal_live_view_and_comparison_agree():
    """The live view began anew with each session; the terminal lost the newest accuracy."""
    watch, progress = Watch(), Progress(Console(file=io.StringIO()))
    past = [
        *RESUMED[:4],
        of_m("epoch_done", 13, epoch=1, of_epochs=2, step=3, validation_top1=50.0),
        *RESUMED[4:7],
        of_m("resumed", 3616, epoch=1, step=3),
        step(3618, 5, 1.0),
    ]
    chapters = set()
    for logged in past:
        watch.apply(logged)
        progress.on_event(logged)
        chapters.add(watch.chapter)
    training = run_state(past).now
    assert list(watch.curves[LOSS, "loss"]) == [(2.0, 3.0), (5.0, 1.0)]
    assert list(watch.curves[TOP1, "student"]) == [(1.0, 50.0)]
    assert training.curves == watch.curves == progress.run.now.curves
    newest = progress.run.newest
    assert (training.step, training.top1) == (newest.step, newest.top1)
    assert len(chapters) == 2  # all is drawn anew without the step that was undone


def test_steps_that_come_again_replace_those_before_though_nobody_said_resumed():
    training = run_state([step(1, 2, 3.0), step(2, 4, 2.0), step(3, 3, 1.0)]).now
    assert training.over(COUNT)[LOSS, "loss"] == [(20.0, 3.0), (30.0, 1.0)]


BLOCKS = [
    of_m("member_started", 0, source="tr", seed=0),
    step(1, 5, 0.1, block_losses=[0.1]),
    of_m("whole_student_started", 2, epochs=1),
    step(3, 1, 2.0),
    step(4, 2, 1.5),
]


def test_blocks_and_the_whole_student_after_them_are_two_curves():
    training = run_state(BLOCKS).trainings["m"]
    blocks, student = (LOSS, "loss of the blocks"), (LOSS, "loss")
    over = training.over(COUNT)
    assert over[blocks] == [(50.0, 0.1)]
    assert over[student] == [(60.0, 2.0), (70.0, 1.5)]
    assert [x for x, _ in training.curves[student]] == [6.0, 7.0]  # after the blocks' steps
    assert [x for x, _ in training.curves[SPEED, "student"]] == [5.0, 6.0, 7.0]


@pytest.mark.parametrize("blocks_say_it", [True, False])
def test_a_whole_student_that_is_resumed_goes_on_after_the_blocks(blocks_say_it):
    again = [of_m("run_started", 10), of_m("member_started", 11, source="tr", seed=0)]
    if blocks_say_it:
        again.append(of_m("resumed", 12, epoch=1, step=5))
    again += [
        of_m("whole_student_started", 12, epochs=1),
        of_m("resumed", 13, epoch=0, step=1),
        step(14, 2, 1.0),
    ]
    training = run_state([*BLOCKS, *again]).trainings["m"]
    assert training.over(COUNT)[LOSS, "loss"] == [(60.0, 2.0), (70.0, 1.0)]
    assert training.over(COUNT)[LOSS, "loss of the blocks"] == [(50.0, 0.1)]


def test_it_counts_samples_and_teacher_seconds_of_the_student_alone():
    member = "served/seed0"
    state = run_state(
        [
            event("step_logged", 0.0, "teacher", loss=9.0, samples_seen=5),
            event("member_started", 10.0, member, source="served", seed=0),
            event("teacher_joined", 11.0, member, name="t0"),
            event("teacher_joined", 12.0, member, name="t1"),
            event("step_logged", 13.0, member, loss=2.0, samples_seen=64),
            event("step_logged", 13.5, "teacher", loss=7.0, samples_seen=5),
            event("teacher_lost", 14.0, member, teacher="t0"),
            event("epoch_done", 15.0, member, epoch=1, validation_top1=50.0),
            event("member_done", 20.0, member),
        ]
    )
    assert list(state.trainings) == [member]
    training = state.trainings[member]
    assert training.over(SECONDS)[LOSS, "loss"] == [(3.0, 2.0)]
    assert training.over(COUNT)[TOP1, "student"] == [(64.0, 50.0)]
    assert training.teachers.served_s == 3 + 8


def test_local_models_are_undone_by_rounds_and_by_worker():
    def look(time, number):
        return of_m("errors_measured", time, round=number, iterations=10 * (number + 1),
                    parallel_s=float(number), chosen=20.0 - number, global_=10.0 - number,
                    locals=[], compressed=[], validation_locals=[], validation_global=0.0,
                    local_losses=[], global_loss=0.0, models=[])  # fmt: skip

    def local(time, number, worker=0):
        return of_m("local_step", time, worker=worker, round=0, step=number, of_steps=40,
                    loss=1.0, samples_per_second=9.0)  # fmt: skip

    training = run_state(
        [
            of_m("member_started", 0, source="ec", seed=0),
            local(1, 10), local(1, 10, worker=1), look(2, 0), local(3, 20), look(4, 1),
            local(5, 30), look(6, 2),
            of_m("run_started", 100), of_m("member_started", 100, source="ec", seed=0),
            of_m("resumed", 101, epoch=2, step=40),
            of_m("worker_resumed", 102, worker=0, step=20),
        ]
    ).now  # fmt: skip
    assert [errors.round for errors in training.rounds] == [0, 1]
    assert list(training.curves["test error", "global (_G)"]) == [(10.0, 10.0), (20.0, 9.0)]
    assert [x for x, _ in training.curves[LOSS, "worker 0"]] == [10.0, 20.0]
    assert [x for x, _ in training.curves[LOSS, "worker 1"]] == [10.0]
    assert training.counted == "iterations"
    assert training.over(SECONDS)["test error", "global (_G)"] == [(0.0, 10.0), (1.0, 9.0)]


def test_local_models_that_are_resumed_before_the_first_look_keep_their_own_steps():
    """It said "step 200 of 100": a resume counts the steps of all workers."""
    training = run_state(
        [
            of_m("member_started", 0, source="ec", seed=0),
            of_m("local_step", 1, worker=0, round=0, step=50, of_steps=100, loss=1.0),
            of_m("member_started", 9, source="ec", seed=0),
            of_m("resumed", 10, epoch=1, step=200),
        ]
    ).now
    assert (training.step, training.of_steps) == (50, 100)


def test_a_damaged_line_does_not_turn_time_back():
    lines = [
        *RESUMED[:5],
        parse({"event": "step_logged", "time": "now", "member": "m"}),
        *RESUMED[5:],
    ]
    assert run_state(lines).time == 3618
    assert run_state(lines).now.seconds == run_state(RESUMED).now.seconds


def test_a_teacher_that_comes_and_goes_for_ever_costs_all_of_its_time():
    rows = TeacherRows()
    for k in range(500):
        rows.apply(event("teacher_joined", 2.0 * k, name="t0"))
        rows.apply(event("teacher_lost", 2.0 * k + 1, teacher="t0", why="killed", resent=2))
    assert rows.served_s == 500
    assert rows.rows["t0"].resends == 1000
    assert len(rows.rows["t0"].spans) == 60
    assert not rows.serving


def test_the_newest_finding_of_each_check_of_this_session_is_kept():
    def finding(code, time, result):
        return event("check_made", time, code=code, result=result, title="t")

    seen = [
        event("run_started", 0),
        finding("KD-M01", 1, "tip"),
        finding("KD-D01", 1, "issue"),
        event("run_started", 100),
        finding("KD-D01", 101, "issue"),
        finding("KD-D01", 102, "passed"),
    ]
    state = run_state(seen)
    assert {code: one.result for code, one in state.checks.items()} == {"KD-D01": "passed"}
