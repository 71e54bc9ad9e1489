"""A reader carries out instructions and reports each end of a request to the machine."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from kdlab.cluster.reader.pool_connection import Unreachable, Unusable
from kdlab.cluster.reader.reader_loop import ReaderLoop
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Check,
    EmitEvent,
    EndCheck,
    Need,
    Release,
    ReturnTeacher,
    Send,
)

PART = Part(0, 1, 0, 2)
ZEROS = np.zeros((2, 3), np.float32)


class Machine:
    """Records the events that it gets, and gives no instructions."""

    def __init__(self):
        self.heard = []

    def __getattr__(self, name):
        def on(*args, **kwargs):
            self.heard.append(
                (name, *args, {k: v for k, v in kwargs.items() if k != "time"})
            )
            return []

        return on


class Loop(ReaderLoop):
    def __init__(self, answers=(), coordinator=None):
        super().__init__()
        self.machine, self.answers = Machine(), list(answers)
        self.wires = SimpleNamespace(
            coordinator=coordinator, engines={"a": "compiled bf16"}
        )
        self.done, self.failures, self.checks = [], [], []

    def execute(self, instruction):
        self.done.append(instruction)
        super().execute(instruction)

    async def soft_labels(self, part, teacher, *, check):
        self.checks.append(check)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def failed_task(self, error):
        self.failures.append(error)

    def live(self, *orders):
        async def act():
            self.do(orders)
            while self.background:
                await asyncio.sleep(0)

        asyncio.run(act())
        return self.machine.heard


def test_an_answer_is_there_while_it_is_heard_of_and_not_afterwards():
    loop = Loop([ZEROS])
    (name, part, teacher, lease, *_), *none = loop.live(Send(PART, "a", 7))
    assert (name, part, teacher, lease, none) == ("on_answer", PART, "a", 7, [])
    assert loop.answer is None
    assert loop.computed_by == "compiled bf16"
    assert loop.checks == [False]


@pytest.mark.parametrize("unusable", [True, False])
def test_a_request_that_came_to_nothing_is_trouble(unusable):
    error = Unusable("nan") if unusable else Unreachable("gone")
    loop = Loop([error])
    assert loop.live(Send(PART, "a", 7)) == [
        ("on_trouble", "a", 7, str(error), {"unusable": unusable})
    ]


def test_an_error_of_another_kind_is_a_defect():
    loop = Loop([OSError("the images are gone")])
    assert loop.live(Send(PART, "a", 7)) == []
    assert [str(error) for error in loop.failures] == ["the images are gone"]


@pytest.mark.parametrize(("second", "agrees"), [(ZEROS, 2), (ZEROS + np.eye(2, 3), 1)])
def test_answers_to_one_part_are_compared(second, agrees):
    loop = Loop([second.astype(np.float32)])
    loop.answer = ZEROS
    ((name, part, *who, how),) = loop.live(Check(PART, "b", 8, ("a", 7)))
    assert (name, part, who) == ("on_compared", PART, ["b", 8])
    assert how["agrees_with"] == [("a", 7), ("b", 8)][-agrees:]
    assert loop.checks == [True]
    loop.live(EndCheck(PART))
    assert loop.compared == {}


def test_the_coordinator_is_told_what_the_machine_says_and_its_answer_is_said():
    asked = []

    async def coordinator(operation, **about):
        asked.append((operation, about))
        return True

    loop = Loop(coordinator=coordinator)
    loop.live(AskTeacher(5.0), ReturnTeacher("a", 7, 0.0))
    assert asked == [
        ("tell", {"instruction": {"kind": "AskTeacher", "need": 5.0}}),
        (
            "tell",
            {
                "instruction": {
                    "kind": "ReturnTeacher",
                    "teacher": "a",
                    "lease": 7,
                    "after_s": 0.0,
                }
            },
        ),
    ]
    (event,) = [i.event for i in loop.done if isinstance(i, EmitEvent)]
    assert (event.KIND, event.granted) == ("teacher_requested", True)


def test_what_a_coordinator_that_is_away_did_not_hear_is_asked_again():
    async def away(operation, **about):
        raise OSError("the scheduler is gone")

    loop = Loop(coordinator=away)
    orders = (AskTeacher(5.0), Need(4.0), Release("a", 7, 1.0), ReturnTeacher("b", 8, 0.0))
    assert loop.live(*orders) == [
        ("on_ask_failed", {}),
        ("on_need_failed", {}),
        ("on_release_failed", "a", {}),
    ]
    assert loop.failures == []
