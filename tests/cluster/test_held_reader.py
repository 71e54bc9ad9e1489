"""The reader's process from the trainer's side, when that process is a script."""

import contextlib
import os
import socket

import numpy as np
import pytest
from scripted_children import Starts
from tests_support import event

from kdlab.cluster.child_configs import ReaderConfig, ReaderStart
from kdlab.cluster.reader.reader_process import ReaderProcess
from kdlab.cluster.reader.ring import (
    Channel,
    Layout,
    PauseReader,
    ReaderDefect,
    ReaderOrder,
    Ring,
    SetThresholds,
    StopReader,
)
from kdlab.cluster.reader.student_reader import FIGURES
from kdlab.codec import to_builtins
from kdlab.data.samples import SampleDescription
from kdlab.errors import ClusterError, NoTeacherLeft, RunStopped
from kdlab.papers.edl_dist.reader_instructions import Fail
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.testing.scripted import FakeClock

LAYOUT = Layout(slots=4, largest=3, shape=(1, 2, 2), classes=5, figures=len(FIGURES))


def config(samples):
    return ReaderConfig(
        rules=Rules(t_s=10.0, lt=4, ut=12, wait_s=7.0),
        start=ReaderStart(epoch=1, done=(4,)),
        samples=samples,
        layout=LAYOUT,
        ring_fd=-1,
        socket_fd=-1,
        student="s",
        coordinator="tls://there:1",
        tls=None,
        inputs="reference",
        replies="full",
        top_k=1,
        classes=5,
    )


class Reader:
    """The other end of what a child was started with: its ring and its socket."""

    def __init__(self, child):
        ring_fd, socket_fd = child.options["fds"]
        assert (ring_fd, socket_fd) == (child.config.ring_fd, child.config.socket_fd)
        self.ring = Ring(child.config.layout, os.dup(ring_fd))
        self.end = socket.socket(fileno=os.dup(socket_fd))
        self.channel, self.child = Channel(self.end), child

    def say(self, message):
        self.channel.send(message)
        self.ring.message_sent()

    def fail(self, failure):
        self.say(to_builtins(failure))

    def fill(self, number, batch):
        slot = self.ring.slot(number)
        slot.head[:] = (1, batch, 3)
        slot.soft[:] = batch
        self.ring.fill(number)

    def orders(self):
        """Return the orders that it got since the last call, without wakes."""
        orders = []
        with contextlib.suppress(EOFError):  # and then the trainer's end was closed
            while (message := self.channel.receive(0.0)) is not None:
                if not isinstance(message, int):
                    orders.append(ReaderOrder.from_builtins(message))
        return orders

    def die(self):
        self.child.die(1)
        self.end.close()


class Case:
    def __init__(self, folder, samples):
        self.clock, self.starts, self.events = FakeClock(100.0), Starts(), []
        self.readers, self.asked_to_stop = [], False
        self.starts.then = lambda child: self.readers.append(Reader(child))
        self.log = folder / "reader.log"
        self.held = ReaderProcess(
            config(samples),
            self.log,
            self.events.append,
            lambda: self.asked_to_stop,
            start=self.starts,
            now=self.clock,
        )

    @property
    def reader(self):
        return self.readers[-1]

    def kinds(self):
        return [event.KIND for event in self.events]


@pytest.fixture
def case(tmp_path, samples):
    described = samples.describe()
    assert isinstance(described, SampleDescription)
    case = Case(tmp_path, described)
    yield case
    for reader in case.readers:
        if reader.end.fileno() >= 0:
            reader.end.close()
    case.held.close()


def test_what_the_reader_fills_is_what_the_trainer_takes(case):
    case.reader.fill(2, batch=7)
    number = case.held.take()
    slot, _, soft, _ = case.held.slot(number)
    assert number == 2
    assert slot.head.tolist() == [1, 7, 3]
    assert (soft == 7).all()
    case.held.free(number)
    assert case.reader.ring.collect() == [2]


def test_a_reader_begins_where_the_student_is(case):
    assert case.reader.child.module == "kdlab.cluster.reader.student_reader"
    assert case.reader.child.config.start == ReaderStart(epoch=1, done=(4,))
    assert case.held.pid == case.reader.child.pid


def test_one_that_dies_is_replaced_for_what_is_left(case):
    case.held.trained(5)
    case.held.at(2, {0})
    case.held.trained(3)
    case.reader.die()
    case.starts.then = lambda child: (
        case.readers.append(Reader(child)),
        case.reader.fill(0, 9),
    )
    assert case.held.take() == 0
    assert case.reader.child.config.start == ReaderStart(epoch=2, done=(0, 3))
    (restart,) = case.events
    assert (restart.KIND, restart.epoch, restart.batches) == ("reader_restarted", 2, 2)
    assert restart.why == "it ended during the run (exit code 1)"
    assert case.readers[0].child.stops == 1


def test_the_next_one_has_the_thresholds_and_the_pause_that_were_set(case):
    case.held.set_thresholds(6, 24)
    case.held.pause(paused=True)
    assert case.reader.orders() == [SetThresholds(6, 24), PauseReader(True)]
    case.reader.die()
    case.asked_to_stop = True  # it would wait for a batch
    with pytest.raises(RunStopped, match="while waiting for soft labels"):
        case.held.take()
    rules = case.reader.child.config.rules
    assert (rules.lt, rules.ut) == (6, 24)
    assert case.reader.orders() == [PauseReader(True)]


def dying(case, seconds):
    """Take a batch while each new reader dies after so many seconds; at most 20 die."""

    def die(child):
        case.readers.append(Reader(child))
        case.clock.advance(seconds)
        if len(case.readers) <= 20:
            case.reader.die()
        else:
            case.reader.fill(0, 1)

    case.starts.then = die
    case.reader.die()
    case.held.take()


def test_one_that_dies_at_once_again_and_again_is_given_up(case):
    with pytest.raises(ClusterError, match=r"ended during the run.*\n?.*5 times"):
        dying(case, seconds=1.0)
    assert case.kinds() == ["reader_restarted"] * 5
    assert len(case.starts.children) == 6
    case.held.close()  # there is nothing to close any more
    assert set(case.held.figures()) == set(FIGURES)


def test_one_that_dies_now_and_then_is_not(case):
    dying(case, seconds=13.0)  # five in 65 s
    assert case.kinds() == ["reader_restarted"] * 20


def test_what_it_says_is_passed_on_before_the_next_batch(case):
    joined = event("teacher_joined", name="a", t_t=5.0)
    case.reader.say(joined.facts())
    case.reader.fill(1, 1)
    case.held.take()
    assert case.kinds() == ["teacher_joined"]
    case.reader.say(joined.facts())
    case.held.poll()  # also while nobody takes batches
    assert case.kinds() == ["teacher_joined"] * 2
    case.reader.die()
    case.held.poll()  # whoever takes the next batch starts it again
    assert len(case.starts.children) == 1


def test_without_teachers_the_run_ends_with_what_is_missing(case):
    case.reader.fail(Fail(unplaced=40, batches=3, why="it answered with NaN"))
    with pytest.raises(NoTeacherLeft) as caught:
        case.held.take()
    message = str(caught.value)
    for fact in ("40 samples", "3 batches", "7 s", "tls://there:1", "answered with NaN"):
        assert fact in message


def test_a_defect_is_quoted_with_the_end_of_its_log(case):
    case.log.write_text("Traceback\nOSError: the images are gone\n")
    case.reader.fail(ReaderDefect("OSError('the images are gone')"))
    with pytest.raises(ClusterError, match=r"(?s)The reader failed: OSError.*  Traceback"):
        case.held.take()


def test_closing_tells_it_to_go_and_hears_what_it_still_says(case):
    case.reader.ring.figures[FIGURES.index("volume_max")] = 17.0
    case.reader.say(event("teacher_joined", name="late").facts())
    case.reader.end.shutdown(socket.SHUT_WR)  # that was all
    case.held.close()
    assert case.reader.orders() == [StopReader()]
    assert case.kinds() == ["teacher_joined"]
    assert case.held.figures()["volume_max"] == 17.0  # kept, when the ring is gone
    assert case.reader.child.stops == 1
    case.held.close()
    assert case.reader.child.stops == 1


def test_slots_are_not_shared_between_readers(case):
    """A batch that a dead reader left in its slot is asked for again, not taken twice."""
    case.reader.fill(0, 1)
    case.reader.fill(1, 2)
    taken = [case.held.take()]
    case.reader.ring.slot(1).head[:] = 0
    case.reader.die()
    taken.append(case.held.take())  # what lies there is still good
    assert taken == [0, 1]
    case.starts.then = lambda child: (
        case.readers.append(Reader(child)),
        case.reader.fill(3, 2),
    )
    assert case.held.take() == 3
    assert np.array_equal(case.held.slot(3)[0].head, [1, 2, 3])


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch):
    monkeypatch.setattr("kdlab.cluster.reader.reader_process._TICK_S", 0.002)


def ticks(case, seconds, on_tick):
    """Advance the clock and call `on_tick` with each look of a trainer that waits."""

    def look():
        case.clock.advance(seconds)
        on_tick()
        return case.asked_to_stop

    case.held._stop = look


def replaced_within_hang_s(case):
    """Check that a silent reader is replaced in time; the next one has a batch at once."""
    ticks(case, 1.0, lambda: None)
    case.starts.then = lambda child: (
        case.readers.append(Reader(child)),
        case.reader.fill(0, 9),
    )
    begin = case.clock()
    assert case.held.take() == 0
    assert 20.0 < case.clock() - begin < 23.0


def beat(case):
    case.reader.ring.figures[FIGURES.index("served_s")] += 0.05


def test_one_that_stands_still_is_killed_and_another_goes_on(case):
    """A stopped reader, or one on a dead mount, was waited for until somebody noticed."""
    beat(case)
    replaced_within_hang_s(case)
    waits, restart = case.events
    assert waits.KIND == "labels_awaited"
    assert "no sign of life for 11 s" in waits.why
    assert restart.why == "The reader hangs for 21 s"
    assert case.readers[0].child.stops == 1


def test_one_that_is_stopped_before_its_first_beat_is_found_by_what_it_gave(case):
    case.reader.fill(0, 1)
    assert case.held.take() == 0
    replaced_within_hang_s(case)


def test_wakes_for_one_that_reads_nothing_do_not_stop_the_trainer(case, monkeypatch):
    """Its end of the socket was full after a minute, and the trainer hung with it."""
    monkeypatch.setattr("kdlab.cluster.reader.ring._SEND_S", 0.05)
    sent = [case.held._channel.send(0) for _ in range(100_000)]
    assert all(sent)
    assert not case.held._send(PauseReader(True))  # it is told when it is started again
    case.reader.end.close()


def test_one_that_works_on_is_waited_for_and_said_once(case):
    case.reader.ring.figures[FIGURES.index("teachers")] = 3.0
    case.reader.ring.figures[FIGURES.index("in_flight")] = 64.0
    case.reader.ring.figures[FIGURES.index("capacity")] = 0.5
    waited = []

    def works():
        beat(case)
        waited.append(1)
        if len(waited) == 200:
            case.reader.fill(1, 5)

    ticks(case, 1.0, works)
    assert case.held.take() == 1
    (awaited,) = case.events
    assert (awaited.KIND, awaited.why) == (
        "labels_awaited",
        "64 samples are with 3 teachers of 0.5 samples/s in all, 0 have soft labels",
    )


def test_one_that_only_starts_has_more_time(case):
    ticks(case, 5.0, lambda: case.clock() > 200.0 and case.reader.fill(1, 5))
    assert case.held.take() == 1
    assert case.kinds() == ["labels_awaited"]
    assert case.events[0].why == "the reader gives no sign of life for 15 s; see " + str(
        case.log
    )
