"""Metrics of a trial, from its result and its events."""

from tests_support import event

from kdlab.tuning import metrics


def step(member, time, teachers):
    return event("step_logged", member=member, time=time, teachers=teachers)


def test_teacher_seconds_are_teachers_times_time():
    events = [
        step("served/seed0", 0.0, 2),
        step("served/seed0", 1.0, 3),
        event("epoch_done"),
        step("served/seed0", 3.0, 1),
        step("served/seed1", 99.0, 4),  # another run: the gap is nobody's
        step("served/seed1", 100.0, 4),
    ]
    assert metrics.metric("teacher_seconds", simulated=False).value({}, events) == 3 + 2 + 4


def test_a_run_without_a_global_model_has_none():
    metric = metrics.metric("global_top1", simulated=False)
    assert metric.value({"student_top1": 3.0}, ()) is None


def test_the_most_of_several_seeds():
    result = {"runs": [{"volume_max": 3}, {"volume_max": 7}]}
    assert metrics.metric("volume_max", simulated=False).value(result, ()) == 7
