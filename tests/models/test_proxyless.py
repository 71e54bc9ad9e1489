"""The search space: one path at a time, gradients of two gates, MobileNetV2 inside."""

from collections import Counter

import pytest
import torch

from kdlab.errors import SpecError
from kdlab.models.proxyless import (
    ChoicePlace,
    MixedBlock,
    Proxyless,
    cycle_paths,
    draw_paths,
    likeliest_network,
    mixed_blocks,
    places,
)
from kdlab.models.proxyless_supernet import ProxylessSupernet


def test_the_default_network_is_mobilenet_v2():
    """It has the parameters of the paper's Table II, for 10 and for 1,000 classes."""
    small, large = Proxyless(small=True).build(10, 3), Proxyless().build(1000, 3)
    assert sum(p.numel() for p in small.parameters()) / 1e6 == pytest.approx(2.24, abs=0.01)
    assert sum(p.numel() for p in large.parameters()) / 1e6 == pytest.approx(3.50, abs=0.01)
    assert large.eval()(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape == (1, 1000)


def test_skips_are_only_where_the_shape_allows():
    assert ChoicePlace("stages.0.0", 16, 16, 1).may_skip
    assert not ChoicePlace("stages.0.0", 16, 24, 1).may_skip
    assert not ChoicePlace("stages.0.0", 16, 16, 2).may_skip
    with pytest.raises(SpecError, match=r"'skip' for stages\.0\.0, must be one of k3e3"):
        Proxyless(choices=("skip", *("k3e3",) * 15))
    with pytest.raises(SpecError, match="are 2, must be 16"):
        Proxyless(choices=("k3e3", "k3e3"))


def test_a_path_is_drawn_by_its_probability_and_alike_everywhere():
    block = MixedBlock(places(small=True)[1])
    with torch.no_grad():
        block.alpha[4] = 8.0
    seen = []
    for step in range(50):
        block.draw(torch.Generator().manual_seed(step), architecture=False)
        seen.append(block.path)
    assert seen.count((4,)) > 45
    again = MixedBlock(places(small=True)[1])
    again.load_state_dict(block.state_dict())
    again.draw(torch.Generator().manual_seed(49), architecture=False)
    assert again.path == seen[-1]
    block.draw(torch.Generator().manual_seed(0), architecture=True)
    assert len(set(block.path)) == 2


def test_only_the_drawn_path_gets_a_gradient():
    net = ProxylessSupernet(small=True).architecture(10, 3)
    draw_paths(net, 3)
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    for block in mixed_blocks(net):
        (on,) = block.path
        for number, candidate in enumerate(block.candidates):
            grads = [p.grad is not None for p in candidate.parameters()]
            assert all(grads) if number == on else not any(grads)
        assert block.alpha.grad is None


@pytest.mark.long
def test_gates_tell_which_of_two_paths_is_better():
    """Descent on the architecture finds the candidate that gives the wanted output."""
    torch.manual_seed(0)
    block = MixedBlock(ChoicePlace("stages.0.1", 4, 4, 1))
    block.train()
    views = torch.randn(6, 4, 8, 8)
    best = block.place.choices.index("k5e3")
    adam = torch.optim.Adam([block.alpha], lr=0.05, betas=(0.0, 0.999))
    chance = torch.Generator().manual_seed(1)
    for _ in range(250):
        with torch.no_grad():
            target = block.candidates[best](views)
        block.draw(chance, architecture=True)
        adam.zero_grad()
        torch.nn.functional.mse_loss(block(views), target).backward()
        adam.step()
    assert block.chosen == "k5e3"


def test_the_gradient_of_a_gate_is_that_of_its_probability():
    block = MixedBlock(ChoicePlace("stages.0.1", 4, 4, 1)).double()
    block.train()
    views = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    block.path = (1, 2)
    outer = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    block(views).backward(outer)
    first, second = block.candidates[1](views), block.candidates[2](views)
    both = block.alpha.detach()[[1, 2]].softmax(0).requires_grad_()
    # By hand: d/d alpha of sum(outer * (g1 first + g2 second)), g from a softmax of two.
    slopes = torch.stack([(outer * first).sum(), (outer * second).sum()]).detach()
    expected = both.detach() * (slopes - (both.detach() * slopes).sum())
    assert torch.allclose(block.alpha.grad[[1, 2]], expected)
    assert block.alpha.grad[[0, 3, 4, 5, 6]].abs().sum() == 0


def test_expected_work_falls_towards_the_cheap_ones():
    block = MixedBlock(places(small=True)[1])
    block.train()
    block(torch.randn(1, 24, 16, 16))
    before = block.expected_work()
    before.backward()
    gradient = dict(zip(block.place.choices, block.alpha.grad.tolist(), strict=True))
    assert gradient["k7e6"] > 0 > gradient["skip"]
    with torch.no_grad():
        block.alpha[block.place.choices.index("k3e6")] = 50.0
    work = 16 * 16 * (24 * 144 + 144 * (9 + 24))  # expand, depthwise, project
    assert float(block.expected_work().detach()) == pytest.approx(work, rel=1e-4)


def test_what_is_derived_computes_what_the_supernet_does_in_eval():
    net = ProxylessSupernet(small=True).architecture(10, 3)
    with torch.no_grad():
        for number, block in enumerate(mixed_blocks(net)):
            block.alpha[number % len(block.place.choices)] = 1.0
    spec = likeliest_network(net, small=True)
    derived = spec.architecture(10, 3)
    assert "skip" in spec.choices
    state = net.state_dict()
    tensors = {}
    for name in derived.state_dict():
        parts = name.split(".")
        if parts[0] == "stages":
            place = net.stages[int(parts[1])][int(parts[2])]
            parts[3:3] = ["candidates", str(place.likeliest)]
        tensors[name] = state[".".join(parts)]
    derived.load_state_dict(tensors)
    views = torch.randn(2, 3, 32, 32)
    assert torch.equal(derived.eval()(views), net.eval()(views))


def test_a_piece_draws_what_the_whole_net_draws():
    net = ProxylessSupernet(small=True).architecture(10, 3)
    draw_paths(net, 7)
    drawn = [block.path for block in mixed_blocks(net)]
    assert len(set(drawn)) > 1
    draw_paths(net, 8)
    for stage in net.stages:
        draw_paths(stage, 7)
    assert [block.path for block in mixed_blocks(net)] == drawn


def test_candidates_in_turn_come_as_often_as_each_other():
    net = ProxylessSupernet(small=True).architecture(10, 3)
    seen = [Counter() for _ in mixed_blocks(net)]
    for step in range(42):  # of six candidates and of seven
        cycle_paths(net, step)
        for counter, block in zip(seen, mixed_blocks(net), strict=True):
            counter[block.path] += 1
    for counter, block in zip(seen, mixed_blocks(net), strict=True):
        assert set(counter.values()) == {42 // len(block.candidates)}
