import pytest

from kdlab.papers.edl_dist.beyond.pool_size import PoolSize, PoolState, Resize


def level(time, missing=0.0, t_t=10.0, alive=2, starting=0, free=None):
    return PoolState(
        time=time, missing=missing, t_t=t_t, alive=alive, starting=starting, free=free or {}
    )


def test_starts_what_students_miss_and_counts_those_that_start():
    size = PoolSize(1, 8)
    assert size.on_tick(level(0.0, missing=25.0)).start == 3
    assert size.on_tick(level(0.5, missing=25.0, alive=5, starting=3)).start == 0
    assert size.on_tick(level(1.0, missing=90.0, alive=5, starting=0)).start == 3


def test_keeps_the_least_also_when_teachers_die():
    assert PoolSize(2, 4).on_tick(level(0.0, alive=0, t_t=0.0)).start == 2


def test_withdraws_the_slowest_idle_one_after_a_while_but_not_below_the_least():
    size = PoolSize(1, 8, idle_s=10)
    free = {"quick": 20.0, "slow": 5.0}
    assert size.on_tick(level(0.0, alive=3, free=free)) == Resize()
    assert size.on_tick(level(9.0, alive=3, free=free)) == Resize()
    assert size.on_tick(level(10.0, alive=2, free=free)).withdraw == ("slow",)
    assert size.on_tick(level(11.0, alive=1, free={"quick": 20.0})) == Resize()


def test_a_teacher_used_meanwhile_is_not_idle():
    size = PoolSize(0, 8, idle_s=10)
    size.on_tick(level(0.0, free={"a": 1.0}))
    size.on_tick(level(5.0))
    assert size.on_tick(level(11.0, free={"a": 1.0})) == Resize()


def test_nothing_is_withdrawn_while_somebody_searches():
    size = PoolSize(0, 2, idle_s=1)
    size.on_tick(level(0.0, alive=2, free={"a": 1.0}))
    assert size.on_tick(level(5.0, alive=2, missing=9.0, free={"a": 1.0})) == Resize()


def test_a_teacher_that_is_free_for_a_moment_is_on_its_way_to_the_student_that_waits():
    size = PoolSize(0, 4)
    assert size.on_tick(level(0.0, alive=1, missing=9.0, free={"new": 10.0})).start == 0
    assert size.on_tick(level(1.5, alive=1, missing=9.0, free={"new": 10.0})).start == 0
    left_out = size.on_tick(level(2.0, alive=1, missing=9.0, free={"new": 10.0}))
    assert left_out.start == 1


def test_a_pool_that_was_empty_knows_how_many_it_needed():
    size = PoolSize(0, 8)
    assert size.on_tick(level(0.0, alive=0, missing=45.0, t_t=0.0)).start == 1
    size.on_tick(level(1.0, alive=1, free={"a": 10.0}))
    assert size.on_tick(level(9.0, alive=0, missing=45.0, t_t=0.0)).start == 5


def test_bounds_must_be_in_order():
    with pytest.raises(ValueError, match="least <= most"):
        PoolSize(3, 2)
