"""A profile that is kept is used for what it was measured on, and for nothing else."""

import json

import pytest
import torch

from kdlab.errors import BadInput
from kdlab.methods.blockwise.planning import (
    Identity,
    in_order_of,
    joint_identity,
    loading_s,
    partner_of,
    read_profile,
    write_profile,
)
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile

HERE = Identity("here", "two networks", 32)


def profile():
    block = Block(
        teacher_s={16: 0.1, 32: 0.2},
        student_s={16: 0.3, 32: 0.4},
        output_bytes=10,
        gradient_bytes=20,
        fixed_bytes=30,
        row_bytes=40,
        norms=1,
    )
    return Profile(
        types={"a": [block], "b": [block]},
        devices=("a", "b", "a"),
        load_s=0.5,
        links={"a": DeviceLink(bytes_per_s=1e9, latency_s=1e-4, overlap=0.5, meet_s=2e-4)},
        load_overlap=0.25,
        sharing=1.5,
        memory_bytes=(1.0, 2.0, 3.0),
    )


@pytest.fixture
def profile_path(tmp_path):
    write_profile(profile(), HERE, tmp_path / "profile.json")
    return tmp_path / "profile.json"


def test_it_comes_back_without_the_memory_of_that_day(profile_path):
    loaded, original = read_profile(profile_path, HERE), profile()
    assert loaded.memory_bytes is None
    for name in ("types", "devices", "load_s", "link", "links", "load_overlap", "sharing"):
        was, now = getattr(original, name), getattr(loaded, name)
        assert now == was or list(now.values()) == list(was.values()), name
    assert loaded.types["a"][0].teacher_s == {16: 0.1, 32: 0.2}  # rows are numbers again


@pytest.mark.parametrize(
    ("identity", "what"),
    [
        (Identity("elsewhere", "two networks", 32), "another machine"),
        (Identity("here", "other networks", 32), "another model"),
        (Identity("here", "two networks", 16), r"another batch \(32, here 16\)"),
    ],
)
def test_that_of_something_else_is_refused(profile_path, identity, what):
    with pytest.raises(BadInput, match=what):
        read_profile(profile_path, identity)


def test_workers_elsewhere_look_at_their_machines_again(profile_path):
    read_profile(profile_path, Identity("elsewhere", "two networks", 32), any_machine=True)
    with pytest.raises(BadInput, match="another model"):
        read_profile(profile_path, Identity("here", "other", 32), any_machine=True)


def test_what_is_no_profile_is_said(tmp_path):
    with pytest.raises(BadInput, match=r"There is no profile at .*nowhere\.json"):
        read_profile(tmp_path / "nowhere.json", HERE)
    for text in ("{", json.dumps({"identity": 3})):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(
            BadInput, match=r"p\.json cannot be read.* every run keeps its own"
        ):
            read_profile(tmp_path / "p.json", HERE)


def test_machines_that_differ_are_one_identity_whatever_their_order():
    assert joint_identity(HERE, ["here", "here"]) == HERE
    joined = joint_identity(HERE, ["here", "there"])
    assert joined.machine not in ("here", "there")
    assert joined == joint_identity(HERE, ["there", "here"])
    assert (joined.model, joined.batch) == (HERE.model, HERE.batch)
    assert joined != joint_identity(HERE, ["here", "there", "there"])


def test_devices_in_another_order_have_the_same_profile_and_others_have_none():
    assert in_order_of(["b", "a", "a"], profile()).devices == ("b", "a", "a")
    assert in_order_of(["a", "b"], profile()) is None
    assert in_order_of(["a", "b", "c"], profile()) is None


def test_a_link_is_measured_to_one_of_its_type_on_another_machine():
    kinds, hosts = ["a", "a", "b", "a"], ["x", "x", "y", "y"]
    assert partner_of(0, kinds, hosts) == 3
    assert partner_of(0, kinds[:3], hosts[:3]) == 1  # its type comes first
    assert partner_of(2, kinds, hosts) == 0  # of others one on another machine


def test_loading_is_timed_for_as_many_batches_as_there_are():
    steps = []
    assert loading_s(lambda step: steps.append(step) or torch.zeros(1), 3) >= 0
    assert steps == [0, 1, 2]
    assert loading_s(lambda step: 1 / 0, 0) == 0.0
