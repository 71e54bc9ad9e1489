"""Curves, marks and teachers of a run in the live view, from its events only."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from tests_support import event

from kdlab.events.curve import Curve
from kdlab.notebook import picture
from kdlab.notebook.watch import Watch
from kdlab.report import chart
from kdlab.report.timeline import timeline


@given(st.integers(0, 40_000))
def test_a_long_curve_stays_small_and_keeps_its_ends(count):
    curve = Curve()
    for x in range(count):
        curve.add(float(x), 2.0 * x)
    points = list(curve)
    assert len(points) == len(curve) <= 1201
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert all(abs(y - 2 * x) < 1e-6 * (1 + x) for x, y in points)  # means lie on the line
    if count:
        assert points[-1][0] > count - 1 - curve.stride


def served(watch, **teacher):
    spec = {
        "soft_labels": {
            "type": "cluster/served",
            "thresholds_in": "samples",
            "lt": 8,
            "ut": 64,
        }
    }
    watch.apply(event("run_started", time=1.0, experiment="quickstart", spec=spec))
    watch.apply(
        event("member_started", time=2.0, member="served/seed0", source="served", seed=0)
    )
    watch.apply(event("scheduled", time=3.0, t_s=900.0, t_t=100.0, n=9, got=2))
    watch.apply(
        event(
            "teacher_joined",
            time=3.0,
            **{"name": "teacher-0", "device": "cpu", "t_t": 99.0} | teacher,
        )
    )
    step = {"of_steps": 10, "samples_per_second": 850.0}
    for number in range(1, 6):
        watch.apply(
            event(
                "step_logged",
                3.0 + number,
                step=number,
                loss=1.0 / number,
                volume=10.0,
                **step,
            )
        )
    return watch


def test_it_knows_curves_lines_and_teachers():
    watch = served(Watch())
    assert watch.now.panels == ["loss", "speed", "unused soft labels"]
    assert list(watch.curves["loss", "loss"])[1] == (2.0, 0.5)
    assert watch.levels == {
        ("speed", "without a teacher"): [(0, 900.0)],
        ("unused soft labels", "lt"): [(0, 8.0)],
        ("unused soft labels", "ut"): [(0, 64.0)],
    }
    assert len(watch.take_news()) == 15
    assert watch.take_news() == []
    watch.apply(
        event("teacher_lost", time=9.0, teacher="teacher-0", why="killed", resent=3)
    )
    row = watch.now.teachers.rows["teacher-0"]
    assert (row.state, row.resends) == ("lost", 3)
    watch.apply(
        event(
            "settings_changed",
            time=9.0,
            member="served/seed0",
            step=5,
            values={"soft_labels.ut": 99.0},
        )
    )
    # What was drawn before stays as it was.
    assert watch.levels["unused soft labels", "ut"] == [(0, 64.0), (5, 99.0)]
    assert [mark.kind for mark in watch.marks] == ["bad", "set"]
    watch.apply(event("paused", time=9.5, step=5))
    assert 'data-state="paused">paused<' in picture.static(watch)
    watch.apply(event("run_done", time=10.0, state="finished"))
    assert 'data-state="finished">finished<' in picture.static(watch)


def test_another_member_has_curves_of_its_own():
    watch = served(Watch())
    watch.apply(
        event("member_started", time=20.0, member="none/seed0", source="none", seed=0)
    )
    assert watch.now.panels == []
    assert not watch.now.teachers.rows


def test_a_teachers_own_training_is_no_student():
    watch = served(Watch())
    watch.apply(
        event(
            "step_logged",
            time=11.0,
            member="teacher",
            step=1,
            of_steps=2,
            epoch=0,
            samples_per_second=1.0,
            loss=9.0,
        )
    )
    assert watch.now.step == 5


def test_whatever_names_say_is_text():
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    watch = served(Watch(), name=evil, device=evil)
    watch.apply(event("warned", time=9.0, message=evil))
    watch.apply(event("local_step", time=9.0, worker=evil, step=6, of_steps=10, loss=0.3))
    pictures = chart.drawings(picture.panels({evil: watch}))
    for shown in (picture.static(watch), picture.several_runs({evil: watch}), *pictures):
        assert "<script" not in shown
        assert "onerror=alert(2)>" not in shown
    for drawn in pictures:
        ElementTree.fromstring(drawn)


def test_losses_of_different_kinds_share_no_axis():
    loss = {"type": "losses/hinton", "temperature": 4.0}
    runs = {name: served(Watch()) for name in ("a", "b", "c")}
    taught, hotter = ("served", loss), ("served", loss | {"temperature": 1.0})
    kinds = ("none", loss), taught, hotter
    for watch, (source, spec) in zip(runs.values(), kinds, strict=True):
        watch.now.source = source
        watch.started = event("run_started", time=0.0, spec={"loss": spec})
    panels = [panel for panel in picture.panels(runs) if panel.title.startswith("loss")]
    assert [(panel.title, panel.unit, [*panel.curves]) for panel in panels] == [
        ("loss on labels", "", ["a · loss"]),
        ("loss, hinton", "temperature 4", ["b · loss"]),
        ("loss, hinton", "temperature 1", ["c · loss"]),
    ]


def test_the_picture_of_a_run_that_has_shown_nothing():
    still = picture.static(Watch())
    assert "Preparing: no step yet." in still
    assert "<img" not in still


def test_numbers_that_are_none_do_not_break_the_picture():
    watch = served(Watch())
    watch.apply(
        event(
            "step_logged",
            time=9.0,
            member="served/seed0",
            step=6,
            of_steps=10,
            epoch=0,
            samples_per_second=0.0,
            loss=float("nan"),
        )
    )
    drawn = chart.svg(picture.panels({"": watch}))
    ElementTree.fromstring(drawn)
    assert "nan" not in drawn


def test_what_devices_did_is_drawn_as_it_came_last():
    watch = Watch()
    watch.apply(event("member_started", time=1.0, member="tr/seed0"))
    assert "Gantt" not in picture.static(watch)
    for width in (0.5, 1.0):
        spans = [[0, "teacher", 7, 0.0, width], [1, "<b>", 7, width, 2 * width]]
        watch.apply(event("trace_recorded", time=2.0, member="tr/seed0", spans=spans))
    drawn = timeline(watch.spans)
    assert drawn.count("<rect") == 2 + 1  # spans, and the part that has a colour
    ElementTree.fromstring(drawn)
    assert "device 1" in drawn
    assert "2000.0 ms" in drawn
    assert "<b>" not in drawn
    assert "teacher 25%" in drawn  # one of two devices, half of the time
    assert 'alt="Gantt" src="data:image/svg+xml' in picture.static(watch)
    watch.apply(event("member_started", time=3.0, member="dp/seed0"))
    assert "Gantt" not in picture.static(watch)


def test_there_is_a_way_back_from_what_was_set_until_it_is_gone():
    watch = Watch()
    watch.apply(event("member_started", 0.0, source="none", seed=0))
    watch.apply(event("settings_changed", 1.0, step=4, values={"lr_factor": 9.0}))
    assert watch.ruined
    watch.apply(event("settings_reverted", 2.0, step=4, values={"lr_factor": 1.0}))
    assert not watch.ruined
    assert watch.values == {"lr_factor": 1.0}
    assert [mark.text for mark in watch.marks] == ["set: lr_factor = 9"]
