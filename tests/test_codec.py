"""Dataclasses that cross a process border come out as they went in, or not at all."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kdlab.codec import MessageError, Tagged, from_builtins, to_builtins


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    number: int
    where: Path | None
    inner: tuple[Inner, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class Word(Tagged):
    """A message of a child."""


class Started(Word):
    pid: int


class Ended(Word):
    why: str
    after: Word | None = None


def over_a_pipe(value):
    return json.loads(json.dumps(to_builtins(value)))


def test_what_was_sent_arrives():
    sent = Outer(
        number=1, where=Path("/x"), inner=(Inner(share=0.5),), facts={"a": [1, None]}
    )
    assert from_builtins(Outer, over_a_pipe(sent)) == sent


def test_not_a_number_stays_one():
    """A run without validation images has such an accuracy."""
    (inner,) = from_builtins(list[Inner], over_a_pipe([Inner(share=float("nan"))]))
    assert inner.share != inner.share


def test_a_field_that_a_newer_version_has_is_left_out():
    assert from_builtins(Inner, {"share": 1.0, "later": 2}) == Inner(share=1.0)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"where": None}, r"no Outer: .*missing required field `number`"),
        ({"number": "1", "where": None}, r"Expected `int`, got `str` - at `\$.number`"),
        ({"number": 1, "where": None, "inner": [{}]}, r"at `\$.inner\[0\]`"),
        ([], "no Outer"),
    ],
)
def test_what_cannot_be_read_is_named(facts, why):
    with pytest.raises(MessageError, match=why):
        from_builtins(Outer, facts)


def test_classes_are_told_apart_by_name():
    for sent in (Started(7), Ended("it was asked to")):
        assert over_a_pipe(sent)["kind"] == type(sent).__name__
        assert Word.from_builtins(over_a_pipe(sent)) == sent
    inner = over_a_pipe([Ended("so", after=Started(7))])[0]["after"]
    assert inner == {"kind": "Started", "pid": 7}
    for name in ("Paused", "Word", "Tagged", ["Started"], None):
        with pytest.raises(MessageError, match=r"is none of Started, Ended: the two"):
            Word.from_builtins({"kind": name, "pid": 7})
    with pytest.raises(MessageError, match=r"no Started: .* `pid`"):
        Word.from_builtins({"kind": "Started"})


def test_of_two_classes_of_one_name_the_newer_counts():
    class Order(Tagged):  # its own base: a class of `Word` would be known to other tests
        pass

    class Renamed(Order):
        pid: int

    first = Renamed

    class Renamed(Order):  # a notebook cell that ran twice
        pid: int

    assert type(Order.from_builtins({"kind": "Renamed", "pid": 7})) is Renamed is not first


def test_what_has_no_plain_form_is_refused_where_it_is_sent():
    with pytest.raises(TypeError, match="object does not cross processes"):
        to_builtins({"x": object()})
