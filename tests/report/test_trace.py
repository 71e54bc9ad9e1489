"""Spans as a Chrome trace, a picture, and time by part."""

import json

import pytest

from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.report.trace import by_part, chrome_trace, write_chrome_trace
from kdlab.simulate.pipe_bd import Relay


@pytest.fixture
def spans():
    block = Block(teacher_s={8: 1.0}, student_s={8: 2.0})
    costs = StageCosts(Profile(types={"a": [block] * 2}, devices=["a"] * 2), 8)
    return Relay(costs, pipeline(8, [1, 2], [1, 1]), steps=12).run().spans


def test_a_chrome_trace_holds_every_span(spans, tmp_path):
    write_chrome_trace(spans, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    done = [e for e in events if e["ph"] == "X"]
    assert len(done) == len(spans)
    assert min(e["ts"] for e in done) == 0
    students = [e for e in done if e["name"] == "student" and e["tid"] == 1]
    assert [e["args"]["step"] for e in students] == list(range(12))
    assert students[0]["dur"] == pytest.approx(2e6)
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"device 0", "device 1"}
    assert chrome_trace([])["traceEvents"] == []


def test_time_by_part_adds_up(spans):
    parts = by_part(spans)
    duration = max(s.end for s in spans) - min(s.begin for s in spans)
    for device in (0, 1):
        assert sum(parts[device].values()) == pytest.approx(duration)
        assert parts[device]["teacher"] == pytest.approx(12.0)
        assert parts[device]["student"] == pytest.approx(24.0)
    assert parts[1]["idle"] == pytest.approx(1.0)  # until the first relay
    assert by_part([]) == {}


def test_waiting_is_idle():
    spans = [Span(0, "receive", 0, 0.0, 3.0), Span(0, "teacher", 0, 3.0, 4.0)]
    assert by_part(spans)[0] == {"idle": 3.0, "teacher": 1.0}
