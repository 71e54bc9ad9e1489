"""A thread that looks after a pool: what goes wrong is said, and it looks again."""

import threading

from kdlab.cluster.keeper import PoolKeeper


def test_it_looks_again_whatever_went_wrong_and_says_it(caplog):
    looked, enough = [], threading.Event()

    def look():
        looked.append(len(looked))
        if len(looked) == 1:
            raise OSError("the scheduler is gone")
        if len(looked) == 2:
            raise ValueError("nobody thought of this")
        enough.set()

    keeper = PoolKeeper("pool at tcp://there", 0.001, look)
    keeper.start()
    assert enough.wait(60)
    keeper.close()
    assert [record.getMessage() for record in caplog.records] == [
        "pool at tcp://there: the scheduler is gone",
        "pool at tcp://there: nobody thought of this",
    ]


def test_closing_waits_for_the_look_under_way_and_none_comes_after():
    begun, may_end, looks = threading.Event(), threading.Event(), []

    def look():
        begun.set()
        may_end.wait(60)
        looks.append("done")

    keeper = PoolKeeper("pool", 0.001, look)
    keeper.start()
    assert begun.wait(60)
    threading.Timer(0.01, may_end.set).start()
    keeper.close()
    assert looks == ["done"]
    assert not keeper.is_alive()


def test_one_that_was_never_started_is_closed_too():
    PoolKeeper("pool", 1.0, lambda: None).close()
