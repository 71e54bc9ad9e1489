import threading

from kdlab.train.events import EventLog, EventReader, MemberLog, read_all


def test_many_writers_never_mix_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    logs = [EventLog(path) for _ in range(4)]

    def write(log, name):
        for i in range(200):
            MemberLog(log, name).emit("step", i=i, text="x" * 300)

    threads = [
        threading.Thread(target=write, args=(log, str(n))) for n, log in enumerate(logs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_all(path)
    for name in "0123":
        assert [e["i"] for e in events if e["member"] == name] == list(range(200))


def test_a_half_written_line_waits(tmp_path):
    path = tmp_path / "events.jsonl"
    read = EventReader(path)
    assert read() == []
    path.write_bytes(b'{"event": "a"}\n{"event": ')
    assert [e["event"] for e in read()] == ["a"]
    with path.open("ab") as file:
        file.write(b'"b"}\n')
    assert [e["event"] for e in read()] == ["b"]
    assert read() == []


def test_a_torn_line_costs_itself_only(tmp_path):
    path = tmp_path / "events.jsonl"
    EventLog(path).emit("a")
    with path.open("ab") as file:
        file.write(b'{"event": "to')  # the disk was full
    EventLog(path).emit("b")
    assert [e["event"] for e in read_all(path)] == ["a", "b"]
