import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.changes.change import Back
from kdlab.codec import MessageError
from kdlab.errors import CheckpointError
from kdlab.train import checkpoint
from kdlab.train.kept import RevertPoint, step_of, steps


@dataclass(frozen=True, kw_only=True)
class Facts:
    spec_hash: str = "h"
    step: int = 0  # `save` fills it in


@dataclass(frozen=True, kw_only=True)
class OfOptimizer(checkpoint.OptimizerFacts):
    spec_hash: str = "h"


def trained(optimizer_class, **options):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = optimizer_class(net.parameters(), lr=0.1, **options)
    for _ in range(3):
        net(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return net, optimizer


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {}), (torch.optim.SGD, {})],
)
def test_a_restored_state_goes_on_exactly(tmp_path, kind, options):
    net, optimizer = trained(kind, **options)
    tensors, facts = checkpoint.pack(net, optimizer)
    checkpoint.save(tmp_path, 3, tensors, OfOptimizer(**vars(facts)))
    expected = [torch.randn(2) for _ in range(2)]
    net2, optimizer2 = trained(kind, **options)
    loaded = checkpoint.load_newest(tmp_path, "h", OfOptimizer)
    checkpoint.unpack(loaded.tensors, loaded.facts, net2, optimizer2)
    assert [torch.equal(a, torch.randn(2)) for a in expected] == [True, True]
    for model, opt in ((net, optimizer), (net2, optimizer2)):
        torch.manual_seed(1)
        opt.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        opt.step()
    for a, b in zip(net.state_dict().values(), net2.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert loaded.notes == []


def save(folder, step):
    checkpoint.save(folder, step, {"x": torch.tensor([float(step)])}, Facts())


def newest(folder):
    loaded = checkpoint.load_newest(folder, "h", Facts)
    return loaded.facts.step, float(loaded.tensors["x"]), loaded.notes


def test_keeps_two_and_loads_the_newest(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step_000000002",
        "step_000000003",
    ]
    assert newest(tmp_path)[:2] == (3, 3.0)


def test_the_one_to_go_back_to_is_kept_beside_the_newest_two(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
        if step == 1:
            RevertPoint(good=1).write(tmp_path)
    assert [step_of(path) for path in steps(tmp_path)] == [1, 2, 3]
    RevertPoint(good=3).write(tmp_path)
    save(tmp_path, 4)
    save(tmp_path, 5)
    assert [step_of(path) for path in steps(tmp_path)] == [3, 4, 5]
    order = Back(time=9.0, member="m", step=3, set={"lr_factor": 1.0})
    assert checkpoint.go_back(tmp_path, order) is None
    assert newest(tmp_path)[:2] == (3, 3.0)
    assert RevertPoint.read(tmp_path) == RevertPoint(values={"lr_factor": 1.0}, gone=9.0)
    save(tmp_path, 4)
    assert not list(tmp_path.glob(".step_*"))


def test_another_change_moves_the_way_back_and_one_that_is_undone_does_not():
    first, second, third = ({"lr_factor": factor} for factor in (1.0, 2.0, 3.0))
    way = RevertPoint().changed(first, second, 5, 1)
    assert way == RevertPoint(before=first, values=second, good=5, best=1)
    assert way.changed(first, second, 9, 4) == way  # read again after a resume
    undone = way.changed(second, first, 9, 4)
    assert (undone.good, undone.values) == (5, first)
    moved = RevertPoint(before=first, values=third, good=9, best=4)
    assert undone.changed(first, third, 9, 4) == moved


@pytest.mark.parametrize("spoil", ["cut", "flip", "no_json", "bad_json"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, spoil):
    save(tmp_path, 1)
    save(tmp_path, 2)
    state, meta = (
        tmp_path / "step_000000002" / f"state.{x}" for x in ("safetensors", "json")
    )
    raw = bytearray(state.read_bytes())
    if spoil == "cut":
        state.write_bytes(raw[:-3])
    elif spoil == "flip":
        raw[-1] ^= 1
        state.write_bytes(raw)
    elif spoil == "no_json":
        meta.unlink()
    else:
        meta.write_text("{")
    step, value, notes = newest(tmp_path)
    assert (step, value) == (1, 1.0)
    assert "step_000000002 is damaged" in notes[0]


def test_a_half_written_one_is_not_seen(tmp_path):
    save(tmp_path, 1)
    half = tmp_path / ".step_000000002.999"
    half.mkdir()
    (half / "state.json").write_text(json.dumps({"step": 2}))
    assert newest(tmp_path)[0] == 1


def test_another_spec_is_refused(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="written for spec h"):
        checkpoint.load_newest(tmp_path, "other", Facts)


def test_one_of_another_format_is_refused_and_not_taken_for_damaged(tmp_path, monkeypatch):
    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 7)
        save(tmp_path, 2)
    with pytest.raises(CheckpointError, match="checkpoint format 7, this kdlab reads 2"):
        checkpoint.load_newest(tmp_path, "h", Facts)


def test_one_of_the_version_before_is_refused_and_not_taken_for_damaged(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "step_000000001"
    (path / "meta.json").unlink()
    (path / "state.json").write_text('{"format": 1, "spec_hash": "h", "sha256": "x"}')
    with pytest.raises(CheckpointError, match="checkpoint format 1, this kdlab reads 2"):
        checkpoint.load_newest(tmp_path, "h", Facts)


def damage(draw, folder):
    """Flip a bit in a file of a checkpoint, cut the file, zero its end or drop a byte."""
    path = folder / draw(st.sampled_from(["state.safetensors", "state.json", "meta.json"]))
    raw = path.read_bytes()
    at = draw(st.integers(0, len(raw) - 1))
    path.write_bytes(
        draw(
            st.sampled_from(
                [
                    raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],  # a flipped bit
                    raw[:at] + bytes([raw[at] ^ 0x80]) + raw[at + 1 :],
                    raw[:at],
                    raw[:at] + bytes(len(raw) - at),
                    raw[:at] + raw[at + 1 :],
                ]
            )
        )
    )


@pytest.mark.tiered
@settings(deadline=None, max_examples=examples(1000, ci=300))
@given(st.data())
@pytest.mark.long
def test_any_damage_is_noticed_and_the_one_before_is_used(data):
    with TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, 100)
        save(folder, 150)
        damage(data.draw, folder / "step_000000150")
        step, value, notes = newest(folder)
        assert (step, value) in ((100, 100.0), (150, 150.0))
        if step == 150:  # the damage is in white space of JSON
            assert notes == []
            text = (folder / "step_000000150" / "meta.json").read_text()
            assert json.loads(text)["facts"] == {"spec_hash": "h", "format": 2}
        else:
            assert "step_000000150 is damaged" in notes[0]
            assert "going on from number 100: what was trained up to 150 is" in notes[0]


def test_where_all_are_damaged_nothing_begins_anew_without_being_told(tmp_path):
    for step in (100, 150):
        save(tmp_path, step)
        (tmp_path / f"step_000000{step}" / "state.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"would lose all work up to number 150(.|\n)*--anew"
    ):
        newest(tmp_path)
    aside = checkpoint.set_aside(tmp_path)
    assert len(aside) == 2
    assert all(path.is_dir() for path in aside)
    assert checkpoint.load_newest(tmp_path, "h", Facts) is None  # it begins anew


def test_what_can_be_used_is_not_set_aside(tmp_path):
    save(tmp_path, 100)
    save(tmp_path, 150)
    (tmp_path / "step_000000150" / "state.json").write_text("{}")
    assert checkpoint.set_aside(tmp_path) == []
    assert newest(tmp_path)[0] == 100


def test_a_fence_that_cannot_be_read_names_what_to_do(tmp_path):
    checkpoint.raise_fence(tmp_path)
    (tmp_path / "fence.json").write_text("x")
    with pytest.raises(MessageError, match="delete it and resume"):
        save(tmp_path, 1)


def test_checkpoints_are_sorted_by_number(tmp_path):
    """Rounds of an ensemble have ten digits from the hundredth on: the newest was deleted."""
    for number in (990_000_000, 1_000_000_000, 1_010_000_000):
        save(tmp_path, number)
    assert newest(tmp_path)[0] == 1_010_000_000


def test_none_is_none(tmp_path):
    assert checkpoint.load_newest(tmp_path / "nothing", "h", Facts) is None


def test_a_generation_that_was_given_up_as_lost_saves_nothing(tmp_path):
    """Defect B9: a host that was cut off wrote into the folder of its successors."""
    old = checkpoint.raise_fence(tmp_path)
    checkpoint.save(tmp_path, 1, {"x": torch.zeros(1)}, Facts(), fence=old)
    new = checkpoint.raise_fence(tmp_path)
    assert new > old
    half = tmp_path / f".step_000000009.{new}.1"  # its successors are writing it just now
    half.mkdir()
    with pytest.raises(CheckpointError, match="given up as lost"):
        checkpoint.save(tmp_path, 2, {"x": torch.ones(1)}, Facts(), fence=old)
    assert half.is_dir()
    assert checkpoint.load_newest(tmp_path, "h", Facts).tensors["x"] == 0
    checkpoint.save(tmp_path, 2, {"x": torch.ones(1)}, Facts(), fence=new)
    assert checkpoint.load_newest(tmp_path, "h", Facts).tensors["x"] == 1
