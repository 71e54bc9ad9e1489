"""The range test: where the loss falls steepest, what ends it, and who teaches in it."""

from dataclasses import replace

import pytest
import torch

import kdlab
from kdlab.errors import BadInput
from kdlab.events.event import unheard
from kdlab.run import lr_find as finding
from kdlab.run.lr_find import LrFinder, lr_find
from kdlab.train.teacher import prepare


def spec(name="none", *settings):
    return kdlab.load(f"smoke/{name}", *settings).spec


def test_the_steepest_fall_is_suggested_and_the_least_loss_is_the_highest_rate():
    losses = [10.0, 10.0, 9.8, 9.0, 6.0, 3.0, 2.5, 2.4, 2.3, 5.0, 9.0]
    lrs = [10.0**k for k in range(-6, 5)]
    found = finding._found(lrs, losses, taught=False)
    assert found.suggestion == lrs[4]  # from 9.0 to 3.0
    assert found.highest == lrs[8]
    assert "train.lr=0.01" in repr(found)
    assert "on true labels alone" in repr(found)
    assert "with the teacher's soft labels" in repr(replace(found, taught=True))
    assert "svg" in found._repr_html_()


def test_a_loss_that_only_grows_suggests_where_it_was_least():
    lrs, losses = [10.0**k for k in range(-6, 5)], [float(k) for k in range(11)]
    found = finding._found(lrs, losses, taught=False)
    assert found.highest == lrs[0]
    assert found.suggestion in lrs[:3]


def test_a_loss_that_is_no_number_at_once_is_told_with_what_to_look_at():
    with pytest.raises(BadInput, match="no number after 4 steps"):
        finding._found([1.0] * 4, [1.0] * 4, taught=False)
    with pytest.raises(BadInput, match="9 steps are too few"):
        lr_find(spec(), 9)


def test_it_ends_when_the_loss_blows_up_and_changes_nothing_here(elsewhere):
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    said = []
    found = lr_find(spec("none", "train.warmup_epochs=1"), 60, said.append)
    assert said == ["60 steps with a learning rate that grows"]
    assert isinstance(found, LrFinder)
    assert found.lrs[0] == pytest.approx(1e-4)
    assert found.lrs[1] / found.lrs[0] == pytest.approx(1e5 ** (1 / 59))
    assert len(found.lrs) == len(found.losses) <= 60
    assert all(one <= 4.0 * min(found.losses) for one in found.losses[:-1])
    assert not found.taught
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_teacher_that_is_there_teaches_in_it(kdlab_home, elsewhere):
    one = spec("in_process")
    prepare(one.teachers()[0], unheard)
    assert lr_find(one, 10).taught
    assert not lr_find(spec("none"), 10).taught


def test_adamw_begins_lower(elsewhere):
    found = lr_find(spec("none", "train.optimizer=adamw"), 12)
    assert found.lrs[0] == pytest.approx(1e-6)


def test_more_than_logits_is_asked_for_here_or_left_out(monkeypatch):
    plain = spec("in_process")
    assert finding._asked_here(plain) is plain  # logits alone
    featured = spec("in_process", "features=[{type: features/cosine, weight: 1.0}]")
    monkeypatch.setattr(finding, "prepared", lambda teacher: None)
    plain = finding._asked_here(featured)
    assert (plain.features, plain.soft_labels.component) == ((), "soft_labels/none")
    monkeypatch.setattr(finding, "prepared", lambda teacher: "weights")
    near = finding._asked_here(featured)
    assert near.features == featured.features
    assert near.soft_labels.component == "soft_labels/in_process"
