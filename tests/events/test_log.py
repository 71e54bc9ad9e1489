import threading

import pytest

from kdlab.codec import LARGEST
from kdlab.errors import BadInput
from kdlab.events.general import Note
from kdlab.events.log import EventLog, EventReader, LineReader, MemberLog, read_all


def test_many_writers_never_mix_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    logs = [EventLog(path) for _ in range(4)]

    def write(log, name):
        for i in range(200):
            MemberLog(log, name).emit(Note(message=f"{i} " + "x" * 300))

    threads = [
        threading.Thread(target=write, args=(log, str(n))) for n, log in enumerate(logs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_all(path)
    for name in "0123":
        numbers = [e.message.split(" ")[0] for e in events if e.member == name]
        assert numbers == [str(i) for i in range(200)]


def test_a_half_written_line_waits(tmp_path):
    path = tmp_path / "events.jsonl"
    read = EventReader(path)
    assert read() == []
    path.write_bytes(b'{"event": "a"}\n{"event": ')
    assert [e.name for e in read()] == ["a"]
    with path.open("ab") as file:
        file.write(b'"b"}\n')
    assert [e.name for e in read()] == ["b"]
    assert read() == []


def test_a_torn_line_costs_itself_only(tmp_path):
    path = tmp_path / "events.jsonl"
    EventLog(path).emit(Note(message="a"))
    with path.open("ab") as file:
        file.write(b'{"event": "to')  # the disk was full
    EventLog(path).emit(Note(message="b"))
    assert [e.message for e in read_all(path)] == ["a", "b"]


def test_a_line_that_is_too_long_costs_itself_only(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "' + b"x" * (LARGEST + 9) + b'"}\n{"c": 2}\n{"d"')
    read = LineReader(path)
    assert read() == [{"a": 1}, {"c": 2}]
    with path.open("ab") as file:
        file.write(b": 3}\n")
    assert read() == [{"d": 3}]


def test_what_is_wrong_in_a_line_is_said_with_its_number(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.emit(Note(message="a"))
    offset = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"event": "note", "message": 7}\n')
    log.emit(Note(message="b"))
    for start in (0, offset):  # the format, a note, and then the wrong one
        wrong = EventReader(path, start)()[-2]
        assert wrong.text().startswith("event 'note' ignored: ")
        assert wrong.text().endswith("(line 3)")


def test_a_log_of_another_format_is_refused_with_both_numbers(tmp_path):
    path = tmp_path / "events.jsonl"
    EventLog(path).emit(Note(message="a"))
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(
        BadInput, match=r"has format 3; this version of kdlab reads format 2"
    ):
        read_all(path)


def test_a_log_without_a_first_line_is_read_as_far_as_its_events_are_known(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"time": 1.0, "event": "note", "message": "old"}\n')
    assert read_all(path) == [Note(time=1.0, message="old")]
