"""Events in their file: each is read back as it was written, and a damaged line is named."""

import json
import typing
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests_support import event

from kdlab.events.event import BEFORE, Event, OtherEvent
from kdlab.events.log import parse
from kdlab.events.training import EpochDone, StepLogged

_TEXT = st.text("abc {}%", max_size=5)
_PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | _TEXT


def _dictionaries(hint):
    """Return a strategy of dictionaries: JSON knows no other mappings."""
    keys, values = typing.get_args(hint)
    values = _PLAIN if values in (typing.Any, object) else st.from_type(values)
    return st.dictionaries(st.from_type(keys), values, max_size=2)


st.register_type_strategy(Mapping, _dictionaries)
st.register_type_strategy(float, st.floats(-1e6, 1e6))
st.register_type_strategy(str, _TEXT)


@pytest.mark.parametrize("name", Event.KINDS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=20)
@given(st.data())
@pytest.mark.long
def test_every_kind_is_read_back_as_it_was_written(name, data):
    kind = Event.KINDS[name]
    spread = {}
    if kind.SPREAD:
        keys = st.sampled_from(["x", "y"])  # none of its own
        spread = {kind.SPREAD: st.dictionaries(keys, st.floats(0, 1))}
    was = data.draw(st.builds(kind, **spread, **_open_fields(kind)))
    line = json.loads(json.dumps(was.facts()))
    assert line["event"] == name
    assert parse(line) == was


def _open_fields(kind):
    """Return lists for fields that may hold any JSON, which the event does not check."""
    hints = typing.get_type_hints(kind)
    return {
        name: st.just([[0, "load", 1]])
        for name, hint in hints.items()
        if "object" in str(hint) and typing.get_origin(hint) is list
    }


@pytest.mark.parametrize("name", Event.KINDS)
def test_every_line_of_text_names_only_fields_that_there_are(name):
    kind = Event.KINDS[name]
    usual = event(name)
    assert isinstance(usual.text(), str)
    for word in ("{", "}"):
        assert word not in usual.text().replace("{}", "")
    known = {*kind.__struct_fields__, "who"}
    fields = {part.split("}")[0].split(":")[0] for part in kind.LINE.split("{")[1:]}
    assert fields <= known


def test_figures_stand_beside_the_other_facts():
    step = event("step_logged", step=3, volume=7.0)
    assert step.figures == {"volume": 7.0}
    assert step.facts()["volume"] == 7.0
    assert step.facts()["loss"] is None  # it must be there
    assert step.block_losses is None
    assert "block_losses" not in step.facts()


def test_a_line_of_an_unknown_kind_keeps_its_facts():
    line = {"time": 1.0, "event": "of_a_package", "member": "m", "share": 0.5}
    parsed = parse(line)
    assert isinstance(parsed, OtherEvent)
    assert parsed.facts() == line
    assert parsed.text() == ""


def test_a_line_that_lacks_something_is_none_of_its_kind():
    parsed = parse({"time": 1.0, "event": "epoch_done", "epoch": 3})
    assert isinstance(parsed, OtherEvent)
    assert not isinstance(parsed, EpochDone)
    assert parsed.others["epoch"] == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": "three"}, {"epoch": None}, {"of_epochs": 1.5}, {"samples_per_second": [1]},
        {"member": 7}, {"time": "now"},
    ],
)  # fmt: skip
def test_wrong_facts_are_said_and_no_event_of_the_kind(wrong):
    """`EpochDone(epoch="three")` raised wherever its text was made."""
    line = event("epoch_done", epoch=1, of_epochs=2).facts() | wrong
    parsed = parse(line)
    assert type(parsed) is OtherEvent
    assert parsed.text().startswith("event 'epoch_done' ignored: ")
    assert next(iter(wrong)) in parsed.text()
    assert parsed.facts() == line  # nothing is lost
    assert parsed.time == (0.0 if "time" in wrong else line["time"])


def test_a_kind_of_ones_own_is_a_subclass():
    class WeightsPruned(Event, line="{share:.0%} of the weights are 0"):
        share: float

    class MergeResult(Event, kind="weights_merged"):
        """By a name of its own."""

    parsed = parse({"time": 2.0, "event": "weights_pruned", "share": 0.5})
    assert parsed == WeightsPruned(time=2.0, share=0.5)
    assert parsed.text() == "50% of the weights are 0"
    assert type(parse({"event": "weights_merged"})) is MergeResult


def test_a_kind_is_called_as_its_class_and_old_names_are_still_read():
    for name, kind in Event.KINDS.items():
        if kind.__module__.startswith("kdlab."):
            assert (
                name
                == kind.KIND
                == kind.__name__[0].lower()
                + "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__[1:])
            )
    for old, new in BEFORE.items():
        assert old not in Event.KINDS
        was = event(new)
        assert parse(was.facts() | {"event": old}) == was


def test_of_local_models_the_text_says_which():
    assert (
        event("paused", step=4, worker=2).text().startswith("worker 2: paused after step 4")
    )
    assert event("paused", step=4).text().startswith("paused after step 4")


def test_what_is_not_known_is_a_dash():
    assert "- joined (-" in event("teacher_joined", name="-", device=None).text()
    assert isinstance(event("step_logged"), StepLogged)


def test_a_kind_of_ones_own_may_have_a_name_of_before():
    class Trace(Event):
        share: float

    try:
        written = Trace(share=0.5)
        assert parse(written.facts()) == written
    finally:
        del Event.KINDS["trace"]
