import re

from tests_support import event

from kdlab.report import chart, page
from kdlab.report.chart import Panel
from kdlab.report.progressions import progressions, thinned

EVIL = '<img src=x onerror="alert(1)">'


def test_curves_of_one_group_share_a_colour_and_lines_are_named():
    panel = Panel(
        "loss",
        {
            "a · seed0": [(0, 1.0), (2, 0.5)],
            "a · seed1": [(0, 2.0), (2, 1.0)],
            "b": [(1, 1)],
        },
        {"ut": [(0, 3.0)]},
        "seconds",
    )
    drawn = chart.svg([panel])
    colours = re.findall(r'<polyline fill="none" stroke="(#\w+)" stroke-width', drawn)
    assert colours[0] == colours[1] != colours[2]
    assert "ut 3" in drawn
    assert "seconds" in drawn
    assert drawn.count("<polyline") == 3 + 1  # and the level


def test_names_that_do_not_fit_beside_a_title_stand_above():
    names = [f"a rather long name of a curve, number {k}" for k in range(5)]
    few = chart.svg([Panel("loss", {names[0]: [(0, 1), (1, 2)]})])
    many = chart.svg([Panel("loss", {name: [(0, 1), (1, 2)] for name in names})])

    def height(drawn):
        return int(re.search(r'height="(\d+)"', drawn)[1])

    assert height(many) > height(few)
    assert all(drawn.count(names[0]) >= 1 for drawn in (few, many))


def test_not_finite_values_and_nothing_at_all():
    drawn = chart.svg([Panel("loss", {"a": [(0, float("nan")), (1, 2.0)]}), Panel("x", {})])
    assert "nan" not in drawn
    assert "nothing yet" in drawn


def test_everything_is_escaped():
    shown = chart.svg([Panel(EVIL, {EVIL: [(0, 1)]}, {EVIL: [(0, 1.0)]}, EVIL)])
    shown += (
        page.table([EVIL], [[EVIL]]) + page.whole(EVIL, "") + page.image("<svg/>", EVIL)
    )
    assert "<img src=x" not in shown
    assert page.markdown("a|b <i> [x](y)") == r"a\|b \<i\> \[x\]\(y\)"


def test_thinned_curves_keep_their_end_and_mean():
    points = [(float(k), float(k)) for k in range(1001)]
    few = thinned(points, 100)
    assert len(few) <= 101
    assert few[-1] == points[-1]
    assert abs(few[50][0] - few[50][1]) < 1e-9
    assert thinned(points[:5], 100) == points[:5]


def test_one_point_is_seen():
    assert chart.svg([Panel("loss", {"a": [(0, 1.0)]})]).count("<circle") == 1


def test_time_between_sessions_and_undone_steps_do_not_count():
    def at(time, kind, **rest):
        return event(kind, time, "m", **rest)

    told = progressions(
        [
            at(0, "run_started"),
            at(10, "member_started", source="served", seed=0),
            at(10, "teacher_joined", name="t0"),
            at(12, "step", step=2, loss=3.0, samples_seen=20),
            at(14, "step", step=4, loss=2.0, samples_seen=40),
            # killed here; an hour later it goes on from step 2
            at(3614, "run_started"),
            at(3615, "member_started", source="served", seed=0),
            at(3616, "resumed", epoch=0, step=2),
            at(3617, "teacher_joined", name="t0"),
            at(3618, "step", step=4, loss=1.0, samples_seen=40),
            at(3620, "member_done"),
        ]
    )["m"]
    assert told.over_count["loss"] == [(20.0, 3.0), (40.0, 1.0)]
    assert told.over_time["loss"] == [(2.0, 3.0), (8.0, 1.0)]
    assert told.wall_s == 10
    assert told.teacher_s == 4 + 3


def test_blocks_and_the_whole_student_after_them_are_two_curves():
    def at(time, kind, **rest):
        return event(kind, time, "m", **rest)

    told = progressions(
        [
            at(0, "member_started", source="tr", seed=0),
            at(1, "step", step=5, loss=0.1, block_losses=[0.1], samples_seen=50),
            at(2, "whole_student", epochs=1),
            at(3, "step", step=1, loss=2.0, samples_seen=10),
        ]
    )["m"]
    assert told.over_count == {"loss of the blocks": [(50.0, 0.1)], "loss": [(60.0, 2.0)]}


def test_progressions_count_samples_and_teacher_seconds():
    def at(time, kind, **rest):
        return event(kind, time, **rest)

    told = progressions(
        [
            at(0, "step", member="teacher", loss=9.0, samples_seen=5),
            at(10, "member_started", member="served/seed0", source="served", seed=0),
            at(11, "teacher_joined", member="served/seed0", name="t0"),
            at(12, "teacher_joined", member="served/seed0", name="t1"),
            at(13, "step", member="served/seed0", loss=2.0, samples_seen=64),
            at(14, "teacher_lost", member="served/seed0", teacher="t0"),
            at(15, "epoch_done", member="served/seed0", validation_top1=50.0),
            at(20, "member_done", member="served/seed0"),
        ]
    )
    assert list(told) == ["served/seed0"]
    own = told["served/seed0"]
    assert own.over_time["loss"] == [(3.0, 2.0)]
    assert own.over_count["top-1 on validation, %"] == [(64.0, 50.0)]
    assert own.teacher_s == 3 + 8
