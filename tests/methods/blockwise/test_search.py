"""Rounds of weights and of the architecture take turns, and both go through a checkpoint."""

import pytest
import torch
from torch.nn.functional import mse_loss

from kdlab.errors import ModelError
from kdlab.methods.blockwise.pairs import BlockPair
from kdlab.methods.blockwise.search import Alternating, ArchitectureSearch, SearchRounds
from kdlab.models.proxyless import ChoicePlace, MixedBlock
from kdlab.train.recipe import Recipe


def test_when_it_is_whose_turn():
    search = ArchitectureSearch(every=5, warm_up=0.25)
    turns = [search.round_of(step, 40) for step in range(40)]
    assert set(turns[:10]) == {"weights"}
    assert [k for k, turn in enumerate(turns) if turn == "architecture"] == [
        14, 19, 24, 29, 34, 39,
    ]  # fmt: skip


def make_rounds():
    torch.manual_seed(0)
    block = MixedBlock(ChoicePlace("stages.0.0", 4, 8, 1))
    pair = BlockPair(torch.nn.Identity(), block, mse_loss)
    rounds = SearchRounds(
        ArchitectureSearch(every=2, warm_up=0.0), [pair], [1e4], seed=0, of_steps=10
    )
    return block, pair, rounds


def step(number, block, pair, rounds, optimizer):
    rounds.begin(number, [optimizer])
    views = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    pair.loss(block(views), torch.cat([views, views], dim=1)).backward()
    optimizer.step()


def test_each_round_moves_its_own():
    block, pair, rounds = make_rounds()
    optimizer = rounds.optimizer(Recipe(lr=0.1), block)
    assert isinstance(optimizer, Alternating)
    block.train()
    for number, moved in enumerate(("weights", "alpha", "weights", "alpha")):
        before = {k: v.clone() for k, v in block.named_parameters()}
        step(number, block, pair, rounds, optimizer)
        changed = {k for k, v in block.named_parameters() if not torch.equal(v, before[k])}
        assert changed
        assert (changed == {"alpha"}) == (moved == "alpha")


def test_a_checkpoint_holds_both():
    block, pair, rounds = make_rounds()
    optimizer = rounds.optimizer(Recipe(lr=0.1), block)
    block.train()
    for number in range(6):
        step(number, block, pair, rounds, optimizer)
    saved = {k: v.clone() for k, v in block.state_dict().items()}
    state = optimizer.state_dict()
    moments = {
        k: {n: v.clone() if torch.is_tensor(v) else v for n, v in values.items()}
        for k, values in state["state"].items()
    }
    for number in (6, 7):
        step(number, block, pair, rounds, optimizer)
    expected = {k: v.clone() for k, v in block.state_dict().items()}
    again, pair2, rounds2 = make_rounds()
    restored = rounds2.optimizer(Recipe(lr=0.1), again)
    again.load_state_dict(saved)
    restored.load_state_dict({"state": moments, "param_groups": state["param_groups"]})
    again.train()
    for number in (6, 7):
        step(number, again, pair2, rounds2, restored)
    assert all(torch.equal(v, expected[k]) for k, v in again.state_dict().items())


def test_work_counts_only_for_the_architecture():
    _, pair, _ = make_rounds()
    views = torch.randn(2, 4, 6, 6)
    pair.student(views)
    plain = mse_loss(views, views + 1)
    assert pair.loss(views, views + 1) == plain
    pair.loss.architecture = True
    assert pair.loss(views, views + 1) != plain


def test_a_student_without_choices_is_refused():
    pair = BlockPair(torch.nn.Identity(), torch.nn.Conv2d(3, 3, 1), mse_loss)
    with pytest.raises(ModelError, match="nothing to choose from"):
        SearchRounds(ArchitectureSearch(), [pair], [1.0], seed=0, of_steps=1)
