"""The choice among stand-ins: exact, by scores that are what they say."""

import itertools
import random
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div

from kdlab.errors import BadInput, SpecError
from kdlab.methods.blockwise.pairs import SumOverVariants, relative_mse
from kdlab.methods.puzzle.choice import (
    BlockChoice,
    Option,
    best,
    cheapest,
    frontier,
    within,
)
from kdlab.methods.puzzle.measured import (
    engine_of,
    latencies_ms,
    prepared,
    scores,
)


def table(rng, blocks, names):
    return [
        Option(
            block=block,
            name=f"v{number}",
            score=rng.uniform(0, 1),
            latency_ms=rng.uniform(0.1, 2),
            parameters=rng.randrange(1, 10_000),
        )
        for block in range(blocks)
        for number in range(rng.randrange(1, names + 1))
    ]


@pytest.mark.long
def test_no_other_choice_within_the_budgets_is_better():
    """Three hundred random tables against a search of everything."""
    rng, none = random.Random(0), 0
    for _ in range(300):
        options = table(rng, blocks=rng.randrange(1, 6), names=4)
        blocks = max(o.block for o in options) + 1
        ms, size = rng.uniform(0.3, 1.5) * blocks, rng.uniform(2000, 9000) * blocks
        ms = None if rng.random() < 0.2 else ms
        size = None if rng.random() < 0.4 else size
        every = [
            picks
            for picks in itertools.product(
                *([o for o in options if o.block == b] for b in range(blocks))
            )
            if (ms is None or sum(o.latency_ms for o in picks) <= ms)
            and (size is None or sum(o.parameters for o in picks) <= size)
        ]
        chosen = best(options, latency_ms=ms, parameters=size)
        if not every:
            assert chosen is None
            none += 1
            continue
        assert chosen is not None
        assert [o.block for o in chosen] == list(range(blocks))
        least = min(sum(o.score for o in picks) for picks in every)
        assert sum(o.score for o in chosen) == pytest.approx(least, abs=1e-6)
    assert 10 < none < 290


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_scores_of_any_size_are_told_apart(size):
    """The solver's tolerance is an absolute 1e-6, whatever the size of the scores."""
    rng = random.Random(2)
    options = table(rng, blocks=8, names=4)
    scaled = [replace(option, score=size * option.score) for option in options]
    plain, chosen = (best(some, latency_ms=8.0) for some in (options, scaled))
    assert [o.name for o in chosen] == [o.name for o in plain]


def test_thirty_blocks_of_eight_are_chosen_among_at_once():
    rng = random.Random(1)
    options = [
        Option(b, f"v{v}", rng.random(), rng.random(), rng.randrange(1000))
        for b in range(30)
        for v in range(8)
    ]
    chosen = best(options, latency_ms=6.0, parameters=8_000)
    assert chosen is not None
    assert sum(o.latency_ms for o in chosen) <= 6.0 + 1e-6


def test_a_larger_budget_never_costs_more():
    options = table(random.Random(3), blocks=5, names=4)
    points = frontier(options)
    assert len(points) > 2
    assert points == sorted(points)
    moved = [score for _, score in points]
    assert moved == sorted(moved, reverse=True)


def test_scores_are_the_divergence_with_one_block_replaced():
    torch.manual_seed(0)
    teachers = [nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 4)]
    variants = [
        {"same": teachers[0], "skip": nn.Identity()},
        {"same": teachers[1], "other": nn.Linear(6, 6)},
        {"same": teachers[2]},
    ]
    batches = [torch.randn(5, 6), torch.randn(3, 6)]
    divergences = scores(teachers, variants, batches)
    assert (
        divergences[0]["same"]
        == divergences[1]["same"]
        == divergences[2]["same"]
        == pytest.approx(0, abs=1e-6)
    )
    views = torch.cat(batches)
    right = nn.Sequential(*teachers)(views).softmax(1)
    for place, name in ((0, "skip"), (1, "other")):
        blocks = list(teachers)
        blocks[place] = variants[place][name]
        moved = nn.Sequential(*blocks)(views).softmax(1)
        wanted = (right * (right / moved).log()).sum(1).mean()
        assert divergences[place][name] == pytest.approx(wanted.item(), rel=1e-4)
        assert kl_div(moved.log(), right, reduction="batchmean").item() == pytest.approx(
            divergences[place][name], rel=1e-4
        )


def test_each_of_several_learns_as_if_it_were_alone():
    torch.manual_seed(0)
    target, first, second = torch.randn(4, 3, 2, 2), *(nn.Conv2d(3, 3, 1) for _ in range(2))
    views = torch.randn(4, 3, 2, 2)
    SumOverVariants(relative_mse)((first(views), second(views)), target).backward()
    gradient = first.weight.grad.clone()
    first.zero_grad()
    relative_mse(first(views), target).backward()
    torch.testing.assert_close(first.weight.grad, gradient)
    half = relative_mse(target / 2, target)
    torch.testing.assert_close(half, torch.tensor(0.25))
    # The loss of a batch is the mean over its rows, so devices can share the batch.
    rows = target * torch.tensor([1.0, 10.0, 0.1, 3.0]).view(4, 1, 1, 1)
    parts = [relative_mse(first(views[k : k + 1]), rows[k : k + 1]) for k in range(4)]
    torch.testing.assert_close(relative_mse(first(views), rows), torch.stack(parts).mean())


def make_options(blocks):
    """Return options for each block: itself in 10 ms, half of it at a small loss, and a tenth."""
    each = {"same": (0.0, 10.0, 100), "half": (0.1, 5.0, 50), "tenth": (1.0, 1.0, 10)}
    return [Option(b, name, *facts) for b in range(blocks) for name, facts in each.items()]


def test_the_whole_is_as_fast_as_asked_for_even_if_its_parts_are_not_all_of_it():
    """A network costs 8 ms beside its parts here, so twice as fast needs cheaper parts."""
    options = make_options(4)

    def whole_ms(chosen):
        return 48.0, 8.0 + sum(o.latency_ms for o in chosen)

    chosen, teacher_ms, student_ms = within(BlockChoice(faster=2.0), options, whole_ms)
    assert teacher_ms / student_ms >= 2
    assert sum(o.latency_ms for o in chosen) <= 16
    assert sum(o.score for o in chosen) == pytest.approx(1.3)  # three halves and a tenth


@pytest.mark.parametrize("beside", [0.1, 0.3, 0.4, 0.48])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.long
def test_what_parts_do_not_take_does_not_cost_the_best_choice(beside, seed):
    """Even if much of a network's time is spent outside its blocks, the choice is near the best."""
    rng = random.Random(seed)
    options = []
    for block in range(8):
        options.append(Option(block, "same", 0.0, 10.0, 100))
        for number in range(7):
            share = rng.uniform(0.02, 0.9)
            options.append(Option(block, f"v{number}", (1 - share) ** 3, 10 * share, 50))
    constant = beside * 80 / (1 - beside)

    def whole_ms(chosen):
        return 80 + constant, constant + sum(o.latency_ms for o in chosen)

    chosen, teacher_ms, student_ms = within(BlockChoice(faster=2.0), options, whole_ms)
    least = best(options, latency_ms=(80 + constant) / 2 - constant)
    if least is None:  # even the quickest is too slow
        assert beside > 0.3
        assert chosen == cheapest(options, None)
        return
    assert teacher_ms / student_ms >= 2
    taken, right = (sum(o.score for o in choice) for choice in (chosen, least))
    assert taken <= 1.1 * right + 0.05


def test_what_cannot_be_as_fast_ends_in_the_quickest():
    options = make_options(3)
    asked = []

    def whole_ms(chosen):
        asked.append(chosen)
        return 130.0, 100.0 + sum(o.latency_ms for o in chosen)

    chosen, _, student_ms = within(BlockChoice(faster=3.0), options, whole_ms)
    assert [o.name for o in chosen] == ["tenth"] * 3
    assert student_ms == 103
    assert len(asked) < 10
    few = BlockChoice(faster=3.0, smaller=1.5)
    chosen, *_ = within(few, options, whole_ms)
    assert sum(o.parameters for o in chosen) <= 200


def test_a_size_alone_takes_no_heed_of_time():
    choice = BlockChoice(faster=None, smaller=2.0)
    chosen, *times = within(choice, make_options(2), lambda chosen: (20.0, 10.0))
    assert sum(o.parameters for o in chosen) <= 100
    assert times == [20.0, 10.0]
    with pytest.raises(SpecError, match="no budget"):
        BlockChoice(faster=None)


@pytest.mark.parametrize(
    "name", ["folded", pytest.param("onnxruntime", marks=pytest.mark.slow("two exports"))]
)
@pytest.mark.long
def test_what_takes_longer_is_seen_to(name):
    """One network has 200 times the work; only the order of the latencies is checked."""
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    engine = engine_of(name)
    views = torch.randn(1, 32, 48, 48)
    small = nn.Conv2d(32, 4, 1)
    large = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)))
    asks = [prepared(engine, net, views, "it") for net in (small, large)]
    quick, slow = latencies_ms(asks, [views, views])
    assert quick < slow


def test_an_engine_that_is_not_there_is_said():
    with pytest.raises(BadInput, match="engine is magic, which is not"):
        engine_of("magic")
    onnx = find_spec("onnxruntime") is not None and find_spec("onnxscript") is not None
    assert engine_of("auto").name == ("onnxruntime" if onnx else "folded")
