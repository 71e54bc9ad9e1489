"""Parts of the coordinator: quarantine, news of students, the shelf of weights, recording."""

import asyncio
import hashlib
import json
from collections import Counter

import pytest

from kdlab.cluster.coordination.change_notifier import ChangeNotifier
from kdlab.cluster.coordination.coordinator_messages import WeightsSource
from kdlab.cluster.coordination.lease_store import make_store
from kdlab.cluster.coordination.quarantine import Quarantine
from kdlab.cluster.coordination.recording import Recorded
from kdlab.cluster.coordination.weights_cache import WeightsCache
from kdlab.errors import BadInput
from kdlab.papers.edl_dist.fair_shares import Demand, Share, SharedTeacher
from kdlab.papers.edl_dist.leases import LeaseTable
from kdlab.papers.edl_dist.reader_instructions import Deliver
from kdlab.papers.edl_dist.teacher_info import TeacherInfo
from kdlab.testing import replay
from kdlab.testing.scripted import FakeClock

# Quarantine


def test_nobody_is_left_out_without_a_complaint():
    assert Quarantine().left("a", 5.0) == (0.0, "")


def test_each_complaint_doubles_the_time_up_to_ten_minutes():
    left_out, now, waits = Quarantine(), 0.0, []
    for _ in range(9):
        left_out.put("a", "NaN", now)
        waits.append(left_out.left("a", now)[0])
        now += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert left_out.left("a", now) == (0.0, "NaN")
    assert left_out.left("b", 0.0) == (0.0, "")


def test_good_conduct_is_rewarded():
    left_out = Quarantine()
    for now in (0.0, 10.0, 30.0):
        left_out.put("a", "NaN", now)  # until 10, 30, 70
    left_out.put("a", "NaN", 70.0 + 599.0)
    assert left_out.left("a", 669.0)[0] == 80.0  # a second too early
    left_out = Quarantine()
    for now in (0.0, 10.0, 30.0):
        left_out.put("a", "NaN", now)
    left_out.put("a", "NaN", 70.0 + 600.0)
    assert left_out.left("a", 670.0)[0] == 40.0  # one of them is forgotten


def test_with_another_model_all_begin_anew_and_long_reasons_are_cut():
    left_out = Quarantine()
    left_out.put("a", "x" * 1000, 0.0)
    assert len(left_out.left("a", 1.0)[1]) == 300
    left_out.clear()
    assert left_out.left("a", 1.0) == (0.0, "")


# News


def table_with(*students):
    table = LeaseTable(next_epoch=5)
    for student in students:
        table.on_demand(student, 50.0, 0.0, None)
    return table


def woken(table, change, *, student="s", version=None):
    """Return whether the change wakes the student that waits."""

    async def look():
        news = ChangeNotifier(table)
        at = table.version_of(student) if version is None else version
        waiting = asyncio.ensure_future(news.wait(student, at, 60.0))
        await asyncio.sleep(0)
        change(news)
        for _ in range(3):
            await asyncio.sleep(0)
        done = waiting.done()
        waiting.cancel()
        return done

    return asyncio.run(look())


def test_a_student_is_woken_when_something_of_its_own_changes():
    table = table_with("s")

    def change(news):
        table.on_ready("a", 40.0, 1.0)
        news.changed()

    assert woken(table, change)


def test_what_concerns_others_wakes_nobody():
    table = table_with("s", "other")

    def change(news):
        table.on_registered("a", 1.0)  # nobody's before it is ready
        news.changed()

    def make_teacher_ready(news):
        table.on_ready("a", 40.0, 1.0)
        news.changed()

    assert not woken(table, change)
    table.on_demand("other", 0.0, 1.0)
    assert not woken(table, make_teacher_ready, student="other")
    table = table_with("s", "other")
    assert woken(table, make_teacher_ready, student="other")  # it has a share of it


def test_whoever_is_behind_or_not_known_does_not_wait():
    table = table_with("s")
    table.on_ready("a", 40.0, 1.0)
    assert woken(table, lambda news: None, version=-1)
    assert woken(table, lambda news: None, student="nobody", version=0)


def test_a_student_that_is_gone_hears_it():
    table = table_with("s")

    def change(news):
        table.on_student_gone("s", 1.0)
        news.gone("s")

    assert woken(table, change)


def test_after_its_time_it_is_answered_without_news():
    async def look():
        news = ChangeNotifier(table_with("s"))
        await news.wait("s", news._table.version_of("s"), 0.001)

    asyncio.run(look())  # it returns


# Store


@pytest.mark.parametrize(("where", "writes_in_all"), [("redis://127.0.0.1:1", 2), ("", 1)])
def test_a_store_closes_though_a_write_lost_the_cancellation(
    monkeypatch, tmp_path, where, writes_in_all
):
    """Closing waited for ever for a writer that waited for the next change."""

    async def closed():
        store, writes = make_store(where or str(tmp_path / "leases"), "pool"), []

        async def flush():
            writes.append(asyncio.current_task())
            if not where:
                store._changed.clear()  # as a file that was written
            if len(writes) == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return True  # as a command that ended at that moment
            return True

        monkeypatch.setattr(store, "_flush", flush)
        store.put("teacher", "a", {})
        while not writes:
            await asyncio.sleep(0)
        ended, _ = await asyncio.wait([asyncio.create_task(store.close())], timeout=30)
        return len(ended), len(writes)

    # In Redis what was being written is written again at the end.
    assert asyncio.run(closed()) == (1, writes_in_all)


# Weights

FILE = bytes(range(256)) * 10_000  # 2.56 MB: three pieces
SHA = hashlib.sha256(FILE).hexdigest()


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock(100.0)
    monkeypatch.setattr("kdlab.cluster.coordination.weights_cache.time.monotonic", clock)
    return clock


def on_shelf(act):
    async def live():
        shelf = WeightsCache()
        try:
            return await act(shelf)
        finally:
            await shelf.close()
            assert "folder" not in vars(shelf) or not shelf.folder.exists()

    return asyncio.run(live())


def test_a_shelf_that_holds_nothing_leaves_no_folder_behind(monkeypatch):
    calls = []
    monkeypatch.setattr("tempfile.mkdtemp", lambda **how: calls.append(how))
    shelf = WeightsCache()
    asyncio.run(shelf.close())
    assert calls == []


async def filled(shelf):
    have = await shelf.put(SHA, 0, b"")
    while have < len(FILE):
        have = await shelf.put(SHA, have, FILE[have : have + 1_000_000])


def test_a_file_comes_and_goes_in_pieces():
    async def act(shelf):
        await filled(shelf)
        assert shelf.source("t", SHA, []) == WeightsSource(size=len(FILE))
        received = b""
        while len(received) < len(FILE):
            received += await shelf.piece("t", SHA, len(received))
        assert received == FILE
        assert shelf._streams == {}  # its turn is over

    on_shelf(act)


def test_a_piece_that_comes_twice_or_too_early_changes_nothing():
    """Two runs may send the same file at once."""

    async def act(shelf):
        assert await shelf.put(SHA, 0, FILE[:10]) == 10
        assert await shelf.put(SHA, 0, FILE[:10]) == 10
        assert await shelf.put(SHA, 20, FILE[20:30]) == 10
        assert await shelf.put(SHA, 10, FILE[10:30]) == 30
        assert shelf._path(SHA).read_bytes() == FILE[:30]

    on_shelf(act)


def test_whoever_has_them_serves_the_others():
    async def act(shelf):
        assert shelf.source("t", SHA, [("tcp://peer", 7)]) == WeightsSource(
            peer=("tcp://peer", 7)
        )
        with pytest.raises(FileNotFoundError, match="neither this pool nor a teacher"):
            shelf.source("t", SHA, [])

    on_shelf(act)


def test_two_are_served_at_once_and_one_that_went_away_holds_no_place(clock):
    async def act(shelf):
        await filled(shelf)
        sources = [shelf.source(who, SHA, []) for who in "abca"]
        assert [s.wait_s for s in sources] == [None, None, 0.5, None]
        clock.advance(9.0)
        await shelf.piece("b", SHA, 0)  # it goes on; a is not heard of
        clock.advance(2.0)
        assert shelf.source("c", SHA, []).size == len(FILE)
        assert shelf.source("d", SHA, []).wait_s == 0.5

    on_shelf(act)


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "ab", "0" * 63 + "/"])
def test_nothing_but_a_hash_is_a_name(name):
    async def act(shelf):
        for ask in (shelf.put(name, 0, b"x"), shelf.piece("t", name, 0)):
            with pytest.raises(ValueError, match="is no sha256"):
                await ask

    on_shelf(act)


# Recording


class Machine:
    """A machine that changes its arguments."""

    def __init__(self):
        self.counts = Counter()

    def on_event(self, things, *, time):
        self.counts["event"] += 1
        things.append("seen")
        return [Deliver(0, len(things))]

    def on_noise(self):
        self.counts["noise"] += 1

    def look(self):
        return sum(self.counts.values())


def test_events_are_written_as_they_were_given_and_the_rest_passes_through(tmp_path):
    path = tmp_path / "deep" / "journal.jsonl"
    machine = Machine()
    recorded = Recorded(
        machine, path, leave_out=("on_noise",), state=lambda m: m.look(), begun=3
    ).machine
    assert recorded.on_event(["a"], time=1.0) == [Deliver(0, 2)]
    recorded.on_noise()
    assert recorded.look() == 2
    assert recorded.counts is machine.counts
    first, event = map(json.loads, path.read_text().splitlines())
    assert first == {"machine": "Machine", "format": 2, "begun": 3}
    assert event == {
        "on": "on_event",
        "args": [["a"]],
        "kwargs": {"time": 1.0},
        "told": [{"kind": "Deliver", "epoch": 0, "batch": 2}],
        "state": 1,
    }


def lived(path):
    """Write the journal of a table of leases that got events of several kinds."""
    table = Recorded(
        LeaseTable(6.0, next_epoch=5),
        path,
        state=lambda t: [t.version, t.next_epoch],
        ttl_s=6.0,
        next_epoch=5,
    ).machine
    before = SharedTeacher("tcp://a", "free", 1.0, 6.0, shares={"s": Share(7, 0.5)})
    table.on_restored([before], [Demand("s", 50.0)], 8, 1.0)
    table.on_registered("tcp://b", 1.5)
    table.on_ready("tcp://b", 40.0, time=2.0, info=TeacherInfo(name="b", pid=7))
    table.on_demand("s", 60.0, 3.0)
    table.on_lost("tcp://a", 4.0, expired=True)


def test_a_journal_replays_with_what_the_machine_was_given(tmp_path):
    lived(path := tmp_path / "coordinator.jsonl")
    table = replay(path)
    table.check()
    assert table.events["on_ready"] == 1
    assert table.machine.leases["tcp://b"].info == TeacherInfo(name="b", pid=7)
    text = path.read_text()
    path.write_text(text.replace('"told": true', '"told": false'))
    assert replay(path).different.on == "on_lost"
    path.write_text(text.replace('"format": 2, ', ""))
    with pytest.raises(
        BadInput, match="another kdlab: replay it with the one that wrote it"
    ):
        replay(path)


def test_an_event_that_fails_is_not_written_as_one_that_was_carried_out(tmp_path):
    class Broken:
        def on_event(self):
            raise ValueError("impossible")

    recorded = Recorded(Broken(), tmp_path / "journal.jsonl").machine
    with pytest.raises(ValueError, match="impossible"):
        recorded.on_event()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1
