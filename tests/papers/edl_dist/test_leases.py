"""Oracle O-15: no part of a teacher has two owners, an expired one is never handed out."""

import random
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests_support import examples

from kdlab.papers.edl_dist.fair_shares import CRUMB, Demand, poorest
from kdlab.papers.edl_dist.leases import MOVES, LeaseTable
from kdlab.papers.edl_dist.teacher_info import TeacherInfo


def table_with(*teachers, t_t=10.0):
    table = LeaseTable(ttl_s=6)
    for name in teachers:
        table.on_registered(name, 0.0)
        table.on_ready(name, t_t, 0.0)
    return table


def covers(table):
    return {d.student: d.rate / d.need for d in table.demands.values()}


def parts(table, teacher):
    """Return the parts of a teacher, by student."""
    return {s: share.part for s, share in table.leases[teacher].shares.items()}


def epoch_of(table, teacher, student):
    return table.leases[teacher].shares[student].epoch


def names(table, student):
    return sorted(lease.teacher for lease in table.held_by(student))


def test_line_1_covers_the_students_rate():
    table = table_with("a", "b", "c", "d")
    table.on_demand("s", 25.0, 1.0)
    assert names(table, "s") == ["a", "b", "c"]


def test_a_registered_teacher_is_alive_and_not_handed_out():
    table = LeaseTable()
    table.on_registered("a", 0.0)
    table.on_demand("s", 5.0, 0.0)
    assert names(table, "s") == []
    table.on_ready("a", 10.0, 1.0)
    assert names(table, "s") == ["a"]


def test_the_page_draws_every_move():
    page = Path(__file__).parents[3] / "docs" / "edl_dist.md"
    table = page.read_text().partition("| state | event | next state |\n")[2]
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert rows == [f"| {now} | {move} | {then} |" for (now, move), then in MOVES.items()]


def test_what_is_no_move_changes_nothing():
    table = table_with("a", "b")
    table.on_leaving("a", 1.0)
    table.on_demand("s", 50.0, 2.0)
    table.on_ready("a", 10.0, 3.0)
    assert table.leases["a"].state == "draining"
    assert names(table, "s") == ["b"]


def test_case_1_a_free_teacher_that_is_lost_is_ignored():
    table = table_with("a", "b")
    table.on_demand("s", 5.0, 0.0)
    assert table.on_lost("b", 1.0)
    assert names(table, "s") == ["a"]


def test_a_lost_teacher_is_replaced_by_a_free_one():
    table = table_with("a", "b")
    table.on_demand("s", 5.0, 0.0)
    table.on_lost("a", 1.0)
    assert names(table, "s") == ["b"]


def test_who_searches_longest_comes_first():
    table = table_with()
    table.on_demand("late", 5.0, 2.0)
    table.on_demand("early", 5.0, 1.0)
    assert [d.student for d in poorest(table.demands.values())] == ["early", "late"]


def test_each_student_has_a_teacher_where_there_are_enough():
    table = table_with()
    table.on_demand("late", 5.0, 2.0)
    table.on_demand("early", 5.0, 1.0)
    table.on_ready("a", 5.0, 3.0)
    assert covers(table) == pytest.approx({"early": 0.5, "late": 0.5})
    table.on_ready("b", 5.0, 3.0)
    assert covers(table) == pytest.approx({"early": 1.0, "late": 1.0})


def test_line_8_one_additional_teacher_now_or_when_one_is_free():
    table = table_with("a", "b")
    table.on_demand("s", 5.0, 0.0)
    assert table.on_extra("s", 1.0)
    assert names(table, "s") == ["a", "b"]
    assert not table.on_extra("s", 2.0)
    table.on_ready("c", 10.0, 3.0)
    assert names(table, "s") == ["a", "b", "c"]


def test_a_released_teacher_does_not_come_back_by_itself():
    table = table_with("a", "b")
    table.on_demand("s", 15.0, 0.0)
    table.on_release("s", "b", epoch_of(table, "b", "s"), 1e9, 1.0)
    assert names(table, "s") == ["a"]


def test_silence_beyond_the_ttl_expires():
    table = table_with("a", "b")
    table.on_renewed("a", 5.0)
    assert table.expired(6.1) == ["b"]
    assert not table.on_renewed("unknown", 1.0)


def test_long_batches_have_a_longer_ttl_and_loading_does_not_expire():
    table = table_with("a")
    table.on_ready("a", 1.0, 0.0, ttl_s=40)
    table.on_registered("loads", 0.0)
    assert table.expired(39.0) == []
    assert table.expired(41.0) == ["a"]


def test_a_failed_request_gives_the_teacher_back_under_a_new_lease():
    table = table_with("a")
    table.on_demand("s", 5.0, 0.0)
    (before,) = [lease.epoch for lease in table.held_by("s")]
    table.on_release("s", "a", before, None, 1.0)
    (after,) = [lease.epoch for lease in table.held_by("s")]
    assert after > before
    table.on_release("s", "a", before, None, 2.0)  # late: of the lease before
    assert [lease.epoch for lease in table.held_by("s")] == [after]


def test_an_unknown_student_gets_no_extra_teacher():
    assert not table_with("a").on_extra("nobody", 0.0)


def test_at_most_is_kept():
    table = table_with("a", "b", "c")
    table.on_demand("s", 100.0, 0.0, at_most=2)
    assert len(names(table, "s")) == 2


def test_a_teacher_that_leaves_drains_for_its_student_and_is_replaced():
    table = table_with("a", "b")
    table.on_demand("s", 5.0, 0.0)
    assert table.on_leaving("a", 1.0)
    assert not table.on_leaving("a", 1.0)
    assert names(table, "s") == ["b"]
    assert table.leases["a"].state == "draining"
    assert table.on_lost("a", 2.0)
    assert table.delta("s", 0).gone["a"] == "left"


def test_deltas_tell_only_what_is_new():
    table = table_with("a", "b", "c")
    table.on_demand("s", 15.0, 0.0)
    first = table.delta("s", -1)
    assert first.full
    assert {le.teacher for le in first.held} == {"a", "b"}
    assert table.delta("s", first.version).held == ()
    table.on_lost("a", 1.0, expired=True)
    news = table.delta("s", first.version)
    assert not news.full
    assert news.gone == {"a": "expired"}
    assert [le.teacher for le in news.held] == ["c"]


def test_a_reader_far_behind_gets_the_whole_list():
    table = table_with("a")
    table.on_demand("s", 5.0, 0.0)
    for _ in range(3000):
        (lease,) = table.held_by("s")
        table.on_release("s", "a", lease.epoch, None, 1.0)
    assert table.delta("s", 1).full
    assert [le.teacher for le in table.delta("s", 1).held] == ["a"]


def test_a_slower_teacher_makes_its_student_search():
    table = table_with("a", "b")
    table.on_demand("s", 8.0, 0.0)
    table.on_rate("a", 4.0, 1.0)
    assert names(table, "s") == ["a", "b"]


def test_a_newcomer_gets_a_fair_share():
    table = table_with(*"abcdef")
    table.on_demand("first", 100.0, 0.0)
    assert len(names(table, "first")) == 6
    table.on_demand("second", 100.0, 1.0)
    assert len(names(table, "second")) == len(names(table, "first")) == 3
    assert set(table.delta("first", 0).gone.values()) == {"moved"}
    table.on_demand("small", 10.0, 2.0)
    assert names(table, "small") != []
    # All teachers do 60: so much counts of 100, 100 and 10.
    have = [demand.rate for demand in table.demands.values()]
    assert have == pytest.approx([60 * 60 / 130, 60 * 60 / 130, 60 * 10 / 130], rel=0.1)


def test_fair_shares_do_not_swing():
    table = table_with(*"abc")
    table.on_demand("x", 100.0, 0.0)
    table.on_demand("y", 100.0, 0.0)
    before = table.version
    for time in range(50):
        table.on_extra("x", float(time))
        table.on_extra("y", float(time))
    assert table.version == before


def test_one_teacher_serves_all_students_where_there_is_no_other():
    table = table_with("a")
    for student in "xyz":
        table.on_demand(student, 10.0, 0.0)
    assert list(parts(table, "a").values()) == pytest.approx([1 / 3] * 3, abs=0.03)
    table.on_student_gone("y", 20.0)
    assert list(parts(table, "a").values()) == pytest.approx([1 / 2] * 2, abs=0.02)
    table.on_ready("b", 10.0, 20.0)
    assert list(covers(table).values()) == pytest.approx([1.0] * 2, abs=0.03)


def test_a_share_that_grows_keeps_its_lease():
    """Parts under way stay valid; the student only hears of another rate."""
    table = table_with("a")
    table.on_demand("x", 10.0, 0.0)
    table.on_demand("y", 10.0, 0.0)
    (before,) = table.held_by("x")
    version = table.version
    table.on_student_gone("y", 1.0)
    ((held,), gone) = (table.delta("x", version).held, table.delta("x", version).gone)
    assert (held.epoch, held.t_t, gone) == (before.epoch, 10.0, {})
    assert held.share == 1.0
    assert before.share == pytest.approx(0.5)


def test_who_may_hold_one_teacher_has_more_of_it_when_others_go():
    table = table_with("a", "b")
    table.on_demand("x", 20.0, 0.0, at_most=1)
    table.on_demand("y", 20.0, 0.0)
    table.on_demand("z", 20.0, 0.0)
    assert len(names(table, "x")) == 1
    table.on_student_gone("y", 1.0)
    table.on_student_gone("z", 1.0)
    assert [lease.t_t for lease in table.held_by("x")] == [10.0]


def test_a_restored_table_goes_on_with_owners_and_epochs():
    table = table_with("a", "b", "c")
    table.on_demand("s", 15.0, 0.0)
    fresh = LeaseTable(ttl_s=6)
    rows = [deepcopy(row) for row in table.leases.values()]
    fresh.on_restored(rows, [Demand("s", 15.0)], table.next_epoch, 100.0)
    assert names(fresh, "s") == names(table, "s")
    assert {le.teacher: le.epoch for le in fresh.held_by("s")} == {
        le.teacher: le.epoch for le in table.held_by("s")
    }
    assert fresh.expired(103.0) == []
    orphan = LeaseTable(ttl_s=6)
    orphan.on_restored([deepcopy(row) for row in table.leases.values()], [], 9, 0.0)
    assert set(orphan.free) == {"a", "b", "c"}


class Random(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table, self.time, self.views = LeaseTable(ttl_s=6), 0.0, {}

    teachers = st.sampled_from(["a", "b", "c", "d"])
    students = st.sampled_from(["x", "y", "z"])

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds):
        self.time += seconds
        for teacher in self.table.expired(self.time):
            self.table.on_lost(teacher, self.time)

    @rule(teacher=teachers)
    def register(self, teacher):
        if teacher not in self.table.leases:
            self.table.on_registered(teacher, self.time)

    @rule(teacher=teachers, t_t=st.floats(1, 50))
    def ready(self, teacher, t_t):
        if teacher in self.table.leases:
            self.table.on_ready(teacher, t_t, self.time)

    @rule(teacher=teachers)
    def renew(self, teacher):
        self.table.on_renewed(teacher, self.time)

    @rule(student=students, need=st.floats(0, 100))
    def need(self, student, need):
        self.table.on_need(student, need, self.time)

    @rule(teacher=teachers)
    def drain(self, teacher):
        self.table.on_leaving(teacher, self.time)

    @rule(teacher=teachers, t_t=st.floats(1, 50))
    def measure(self, teacher, t_t):
        self.table.on_rate(teacher, t_t, self.time)

    @rule(teacher=teachers)
    def lose(self, teacher):
        self.table.on_lost(teacher, self.time)

    @rule(
        student=students,
        rate=st.floats(0, 100),
        at_most=st.sampled_from([None, 1, 2]),
        priority=st.sampled_from([1.0, 3.0]),
        floor=st.sampled_from([0, 1, 2]),
    )
    def demand(self, student, rate, **how):
        self.table.on_demand(student, rate, self.time, **how)

    @precondition(lambda self: self.table.demands)
    @rule(data=st.data())
    def extra(self, data):
        self.table.on_extra(
            data.draw(st.sampled_from(sorted(self.table.demands))), self.time
        )

    @rule(student=students, teacher=teachers)
    def release(self, student, teacher):
        row = self.table.leases.get(teacher)
        share = None if row is None else row.shares.get(student)
        epoch = -1 if share is None else share.epoch
        self.table.on_release(student, teacher, epoch, 5.0, self.time)

    @rule(student=students)
    def leave(self, student):
        self.table.on_student_gone(student, self.time)

    @invariant()
    def each_part_has_one_owner_that_asked(self):
        for row in self.table.leases.values():
            if row.state != "draining":
                assert (row.state == "assigned") == bool(row.shares)
            assert sum(share.part for share in row.shares.values()) <= 1 + 1e-6
            for student, share in row.shares.items():
                assert share.part >= CRUMB - 1e-9
                assert student in self.table.demands
                held = self.table.demands[student].held
                assert (row.teacher in held) == (row.state == "assigned")

    @invariant()
    def what_is_counted_is_what_is_told(self):
        for demand in self.table.demands.values():
            rate = sum(lease.t_t for lease in self.table.held_by(demand.student))
            assert demand.rate == pytest.approx(rate, rel=1.5 * CRUMB)

    @invariant()
    def a_readers_view_by_deltas_is_the_table(self):
        for student in self.table.demands:
            seen = self.views.setdefault(student, [-1, set()])
            news = self.table.delta(student, seen[0])
            if news.full:
                seen[1] = set()
            seen[1] -= news.gone.keys()
            for lease in news.held:
                (seen[1].discard if lease.state == "draining" else seen[1].add)(
                    lease.teacher
                )
            seen[0] = news.version
            assert seen[1] == set(names(self.table, student))
        for student in list(self.views):
            if student not in self.table.demands:
                del self.views[student]

    @invariant()
    def lease_epochs_only_grow(self):
        rows = self.table.leases.values()
        held = [share.epoch for row in rows for share in row.shares.values()]
        assert len(held) == len(set(held))
        assert all(epoch < self.table.next_epoch for epoch in held)

    @invariant()
    def nobody_searches_while_a_teacher_is_free(self):
        for demand in self.table.demands.values():
            if self.table.free and demand.at_most is None:
                assert demand.rate >= demand.t_s * (1 - 1e-6) - 1e-6

    @invariant()
    def nobody_lacks_what_another_has_too_much(self):
        """Without floors and bounds: all are covered, or nobody has more than it needs."""
        demands = [d for d in self.table.demands.values() if d.need > 0]
        if any(d.floor or d.at_most for d in demands) or not demands:
            return
        for poor in demands:
            for rich in demands:
                spare = min(rich.rate - rich.need, poor.need - poor.rate)
                # As little as a crumb of a teacher is not moved.
                crumb = max((row.t_t for row in rich.held.values()), default=0) * CRUMB
                assert spare <= max(0.05 * poor.need, crumb) + 1e-6


TestRandom = Random.TestCase
TestRandom.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)


# Several runs, one pool


def test_teachers_that_fall_short_are_shared_by_priority():
    table = table_with(*"abcdefghi")
    table.on_demand("first", 90.0, 0.0, priority=2.0)
    table.on_demand("second", 90.0, 1.0)
    assert [len(table.held_by(s)) for s in ("first", "second")] == [6, 3]


def test_a_floor_is_kept_whatever_others_need():
    table = table_with(*"abcdefgh")
    table.on_demand("small", 30.0, 0.0, floor=3)
    table.on_demand("large", 1000.0, 1.0, priority=50.0)
    assert len(table.held_by("small")) == 3
    table = table_with(*"abcdefgh")
    table.on_demand("large", 1000.0, 0.0, priority=50.0)
    table.on_demand("small", 30.0, 1.0, floor=3)  # comes later and is promised three
    assert len(table.held_by("small")) == 3


def test_a_floor_that_cannot_be_kept_blocks_nobody_else():
    table = table_with("a", "b", "c", "d")
    for number, name in enumerate("xyz"):
        table.on_demand(name, 100.0, float(number), floor=3)
    assert sorted(len(table.held_by(s)) for s in "xyz")[0] >= 1
    table.on_ready("e", 10.0, 5.0)
    assert sum(d.teachers for d in table.demands.values()) == pytest.approx(5.0)
    assert list(covers(table).values()) == pytest.approx([5 / 30] * 3, rel=0.1)


def test_a_complaint_that_comes_late_takes_nobodys_teacher():
    """The defect B11: a stale complaint of one student removed another one's teacher."""
    table = table_with("a")
    table.on_demand("first", 5.0, 0.0)
    stale = epoch_of(table, "a", "first")
    table.on_student_gone("first", 1.0)
    table.on_demand("second", 5.0, 2.0)
    assert not table.on_complaint("first", "a", stale, 3.0)
    assert not table.on_complaint("second", "a", stale, 3.0)
    assert [le.teacher for le in table.held_by("second")] == ["a"]
    assert table.on_complaint("second", "a", epoch_of(table, "a", "second"), 3.0)
    assert table.held_by("second") == []


def test_a_free_teacher_that_has_the_data_comes_first():
    table = LeaseTable()
    for name, t_t, local_share in (
        ("fast", 900.0, 0.0),
        ("half", 500.0, 0.52),
        ("near", 100.0, 0.97),
    ):
        table.on_ready(name, t_t, 0.0, info=TeacherInfo(here=local_share))
    table.on_demand("s", 50.0, 0.0)
    assert [lease.teacher for lease in table.held_by("s")] == ["near"]
    table.on_demand("s", 550.0, 1.0)  # the others follow when it does not suffice
    assert sorted(lease.teacher for lease in table.held_by("s")) == ["half", "near"]
    table.on_info("fast", TeacherInfo(here=1.0))
    table.on_demand("t", 10.0, 2.0)
    assert [lease.teacher for lease in table.held_by("t")] == ["fast"]


def test_a_rate_that_a_teacher_tells_reaches_its_student():
    """The coordinator knew that a teacher had become slow, and nobody else did."""
    table = table_with("a")
    table.on_demand("s", 5.0, 0.0)
    version = table.delta("s", -1).version
    table.on_rate("a", 3.0, 1.0)
    delta = table.delta("s", version)
    assert [(lease.teacher, lease.t_t) for lease in delta.held] == [("a", 3.0)]


def test_what_a_student_needs_is_what_it_said_last():
    """Once said, 10,000 samples/s held for ever, and starved one of twice the priority."""
    table = table_with("a", "b", "c", "d")
    table.on_demand("s", 10.0, 0.0)
    table.on_extra("s", 1.0, 10_000.0)
    assert len(names(table, "s")) == 4
    table.on_demand("urgent", 20.0, 2.0, priority=2.0)
    table.on_extra("s", 3.0, 20.0)
    assert len(names(table, "urgent")) == 2


def test_one_teacher_more_than_its_need_is_a_students_for_a_while():
    table = table_with("a", "b")
    table.on_demand("s", 10.0, 0.0)
    assert table.on_extra("s", 1.0, 5.0)  # it starves, whatever it says
    assert len(names(table, "s")) == 2
    table.on_lost("a", 20.0)
    assert table.demands["s"].searching
    table.on_renewed("b", 40.0)
    table.on_rate("b", 9.0, 40.0)
    assert not table.demands["s"].searching


def test_teachers_change_places_where_that_covers_both():
    """Needs of 12 and 25 samples/s once got 11.5 + 7 and 21.9, of five teachers that suffice."""
    table = LeaseTable()
    for name, t_t in zip("abcde", (6.9, 5.2, 11.5, 7.0, 9.7), strict=True):
        table.on_ready(name, t_t, 0.0)
    table.on_demand("first", 18.0, 0.0)
    table.on_demand("second", 25.5, 1.0)
    table.on_extra("first", 2.0, 12.7)
    table.on_rate("a", 6.9, 40.0)  # its extra has faded
    assert min(covers(table).values()) > 0.98, covers(table)


@pytest.mark.parametrize(
    ("rates", "needs"),
    [
        ([10.0] * 3, [7.5] * 4),  # fewer teachers than students
        ([5.2] * 10, [3.3, 3.3, 3.3, 9.9, 9.9, 6.6, 6.6, 6.6]),  # that do not divide
        ([500.0, 10.0], [120.0] * 4),  # one quick, one slow
    ],
)
def test_teachers_that_do_not_divide_evenly_are_shared(rates, needs):
    """Two of four students had the quick one in turn, and two the slow one: 1, 0, 1, 0."""
    table = LeaseTable()
    for number, t_t in enumerate(rates):
        table.on_ready(f"t{number}", t_t, 0.0)
    for number, need in enumerate(needs):
        table.on_demand(f"s{number}", need, 0.0)
    assert min(covers(table).values()) > 0.99, covers(table)
    shares = sum(len(row.shares) for row in table.leases.values())
    assert shares < len(rates) + len(needs)  # no more is cut than must be


def test_teachers_alike_are_not_cut_for_what_is_measured_of_them():
    """Two ranks swapped their two teachers, 104 and 116 samples/s, thirty times a minute."""
    table = table_with("a", "b", t_t=100.0)
    table.on_demand("one", 200.0, 0.0)
    table.on_demand("two", 200.0, 0.0)
    before = {name: parts(table, name) for name in "ab"}
    drawn = random.Random(0)
    for tick in range(1, 4 * 60):
        at = tick / 4
        for teacher in "ab":
            table.on_rate(teacher, drawn.uniform(90.0, 110.0), at)
        table.on_need("one", drawn.uniform(190.0, 210.0), at)
    assert {name: parts(table, name) for name in "ab"} == before


def test_shares_are_given_by_priority():
    table = table_with("a")
    table.on_demand("twice", 10.0, 0.0, priority=2.0)
    table.on_demand("once", 10.0, 0.0)
    assert parts(table, "a") == pytest.approx({"twice": 2 / 3, "once": 1 / 3})


def test_who_needs_less_than_it_said_gives_way_to_others_whatever_their_priority():
    """Measured at 1.25 of its pace, one of priority 2 held what another starved for."""
    table = table_with(*"abcdefghi")
    table.on_demand("first", 60.0, 0.0, priority=2.0)
    table.on_demand("second", 40.0, 0.0)
    assert covers(table)["second"] < 0.8
    table.on_need("first", 50.0, 1.0)
    assert min(covers(table).values()) > 0.99


def test_who_overstates_its_need_crowds_nobody_out():
    """A student of 1e9 samples/s that had not trained yet left another 2 % of two teachers."""
    table = table_with("a", "b")
    table.on_demand("trains", 10.0, 0.0)
    table.on_demand("announced", 1e9, 1.0)
    assert covers(table)["trains"] == pytest.approx(2 / 3, abs=0.03)
    table.on_need("announced", 5.0, 2.0)
    assert min(covers(table).values()) > 0.98


def test_who_asks_for_one_more_takes_from_nobody_what_it_does_not_need():
    table = table_with("a", "b")
    table.on_demand("x", 10.0, 0.0)
    table.on_demand("y", 10.0, 0.0)
    table.on_extra("x", 1.0, 10.0)  # it starved once, with enough
    assert covers(table) == {"x": 1.0, "y": 1.0}
