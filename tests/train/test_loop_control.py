"""How a loop applies changes, without a process; ranks are simulated by their numbers."""

import time
from types import SimpleNamespace

import pytest

from kdlab.changes.change import LR_FACTOR, Change, ChangeReader, append
from kdlab.changes.queue import ChangeQueue
from kdlab.changes.request import ChangeRequest
from kdlab.losses.hinton import Hinton
from kdlab.train.loop_control import LoopControl, agree_with_nobody, in_each_step

LOSS = Hinton(temperature=4.0)
VALUES = {one.name: one.value for one in in_each_step(LOSS)}


@pytest.fixture
def give(tmp_path):
    """Return a function that appends a change, as a user outside of the run does."""

    def append_change(kind, member="m", **data):
        append(tmp_path, Change.KINDS[kind](time=time.time(), member=member, **data))

    return append_change


def control(folder, **options):
    """Return a control at step 7 and the events that it emits."""
    events = []
    first = options.pop("is_first", True)
    job = SimpleNamespace(
        stop=lambda: False,
        leave=lambda: False,
        pulse=lambda step: None,
        changes=ChangeQueue(folder / "control.jsonl", "m"),
        emit=events.append,
    )
    vars(job).update(options)
    return LoopControl(job, LOSS, lambda: 7, is_first=first), events


def all_of(*requests):
    """Return the request on which ranks agree: the sum of their numbers."""
    sums = [sum(numbers) for numbers in zip(*(r.numbers() for r in requests), strict=True)]
    return ChangeRequest.from_sums(sums)


def test_values_hold_from_the_next_step_on_and_are_told_once(tmp_path, give):
    loop, events = control(tmp_path)
    give("set", set={"loss.temperature": 2.0})
    loop.changes.poll(now=True)
    assert loop.apply(loop.request())
    assert loop.values == VALUES | {"loss.temperature": 2.0}
    assert loop.loss.temperature == 2.0
    assert not loop.apply(loop.request())
    (event,) = events
    assert (event.step, event.values) == (7, {"loss.temperature": 2.0})


def test_what_was_set_before_holds_after_a_resume(tmp_path, give):
    give("set", set={LR_FACTOR: 0.5})
    give("set", "another member", set={LR_FACTOR: 9.0})
    loop, _ = control(tmp_path)
    loop.apply(loop.wanted_values(now=True))
    assert loop.lr_factor == 0.5


def test_a_checkpoint_that_was_asked_for_is_wanted_once(tmp_path, give):
    loop, _ = control(tmp_path)
    give("checkpoint")
    loop.changes.poll(now=True)
    assert loop.request().save
    assert not loop.request().save
    assert loop.request(save=True).save


def test_the_first_rank_speaks_for_the_user_and_each_for_itself(tmp_path, give):
    give("pause")
    give("set", set={LR_FACTOR: 0.5})
    first, events = control(tmp_path)
    second, silent = control(tmp_path, is_first=False, stop=lambda: True)
    for loop in (first, second):
        loop.changes.poll(now=True)
    agreed = all_of(first.request(), second.request())
    assert agreed == ChangeRequest(
        stop=True, pause=True, values=tuple((VALUES | {LR_FACTOR: 0.5}).values())
    )
    assert first.apply(agreed)
    assert second.apply(agreed)
    assert first.values == second.values
    assert len(events) == 1
    assert not silent


def test_a_request_without_values_changes_none(tmp_path):
    loop, events = control(tmp_path)
    assert not loop.apply(ChangeRequest(values=(0.0,) * len(VALUES)))
    assert not loop.apply(ChangeRequest())
    assert loop.values == VALUES
    assert not events


@pytest.mark.parametrize("ends", ["go_on", "stop", "leave"])
def test_a_pause_ends_when_somebody_says_so(tmp_path, give, ends):
    asked = {"stop": False, "leave": False}
    loop, events = control(
        tmp_path, stop=lambda: asked["stop"], leave=lambda: asked["leave"]
    )
    give("pause")
    loop.changes.poll(now=True)
    rounds = []

    def act(now):
        rounds.append(now)
        if len(rounds) == 2:
            if ends == "go_on":
                give("go_on")
            else:
                asked[ends] = True

    loop.pause(agree=agree_with_nobody, act=act)
    assert [event.KIND for event in events] == ["paused", "continued"]
    assert len(rounds) >= 3
    assert all(now.pause for now in rounds[:2])
    assert getattr(rounds[-1], ends, not rounds[-1].pause)


def test_requests_are_put_together_and_the_last_values_count():
    both = ChangeRequest(save=True, values=(1.0,)) | ChangeRequest(values=(2.0,))
    assert both == ChangeRequest(save=True, values=(2.0,))
    assert (both | ChangeRequest(values=(0.0,))).values == (2.0,)
    assert both.ends_the_step
    assert not ChangeRequest(values=(2.0,)).ends_the_step


def test_a_change_is_read_back_and_what_is_none_is_left_out(tmp_path, give):
    begin = time.time()
    give("kill_teacher", name="teacher-0")
    path = tmp_path / "control.jsonl"
    with path.open("a") as file:
        file.write('{"event": "dance", "time": 1, "member": "m"}\n{"event": "pause"}\nno\n')
    read = ChangeReader(path)
    (change,) = read()
    assert (change.KIND, change.name, change.member) == ("kill_teacher", "teacher-0", "m")
    assert change.time >= begin
    assert read() == []
