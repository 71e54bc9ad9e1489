"""Aggregations of weights, three communications each, against their papers' formulae in NumPy."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from kdlab.errors import SpecError
from kdlab.testing import check_aggregation
from kdlab.train.aggregation.bmuf import Bmuf
from kdlab.train.aggregation.dart import Dart
from kdlab.train.aggregation.diloco import DiLoCo
from kdlab.train.aggregation.easgd import Easgd
from kdlab.train.aggregation.easgd_async import EasgdAsync
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.muloco import MuLoCo, packed, quantised, unpacked
from kdlab.train.aggregation.papa import Papa
from kdlab.train.aggregation.soup import Soup
from kdlab.train.aggregation.streaming_diloco import StreamingDiLoCo
from kdlab.train.aggregation.weights import MergeInputs

NAMES = ("a", "b", "c", "d", "e")
WORKERS, ROUNDS = 3, 4


def gradients(seed=0):
    """Return the updates of all workers in all rounds: (rounds, workers, names)."""
    return np.random.default_rng(seed).normal(size=(ROUNDS, WORKERS, len(NAMES)))


def as_state(numbers, count=7):
    state = {n: torch.tensor([v]) for n, v in zip(NAMES, numbers, strict=True)}
    return state | {"steps": torch.tensor(count)}


def numbers(state):
    return np.array([float(state[name]) for name in NAMES])


def played(aggregation, error=lambda weights: 0.0):
    """Weights of all workers and the global ones, after each round."""
    begin = np.linspace(-1, 1, len(NAMES))
    memory = aggregation.memory(as_state(begin), frozenset(NAMES))
    memories, local = [memory] * WORKERS, [begin] * WORKERS
    course = []
    for number in range(ROUNDS):
        states = [as_state(w + g) for w, g in zip(local, gradients()[number], strict=True)]
        merges = [
            aggregation.merge(
                MergeInputs(
                    states=states, local=states[k], memory=memories[k],
                    parameters=frozenset(NAMES), round=number, rounds=ROUNDS, error=error,
                )
            )
            for k in range(WORKERS)
        ]  # fmt: skip
        memories = [m.memory for m in merges]
        local = [numbers(m.weights) for m in merges]
        merged = [numbers(m.global_weights or m.weights) for m in merges]
        assert all(np.array_equal(w, merged[0]) for w in merged)  # no server, and all agree
        assert all(int(m.weights["steps"]) == 7 for m in merges)
        course.append((np.array(local), merged[0]))
    return course


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.fixture(autouse=True)
def in_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_a_plain_average():
    w = np.linspace(-1, 1, len(NAMES))
    for (local, merged), g in zip(played(ModelAverage()), gradients(), strict=True):
        w = (w + g).mean(0)
        close(merged, w)
        close(local, [w] * WORKERS)


def test_diloco_is_nesterov_on_what_workers_have_moved():
    """PyTorch's own SGD as the outer optimiser, as the authors use it."""
    begin = np.linspace(-1, 1, len(NAMES))
    outer = torch.nn.Parameter(torch.tensor(begin))
    sgd = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    for (local, merged), g in zip(played(DiLoCo()), gradients(), strict=True):
        outer.grad = outer.detach() - torch.tensor((outer.detach().numpy() + g).mean(0))
        sgd.step()
        close(merged, outer.detach().numpy())
        close(local, [merged] * WORKERS)


def test_diloco_without_momentum_at_rate_one_is_an_average():
    plain, outer = played(ModelAverage()), played(DiLoCo(outer_lr=1, outer_momentum=0))
    for (_, averaged), (_, moved) in zip(plain, outer, strict=True):
        close(averaged, moved)


def test_fragments_take_turns_in_streaming_diloco():
    fragments, lr, mu = 2, 0.7, 0.9
    begin = np.linspace(-1, 1, len(NAMES))
    centre, speed, seen = begin.copy(), np.zeros(5), np.zeros(5, bool)
    w = np.array([begin] * WORKERS)
    spec = StreamingDiLoCo(tau=4, fragments=fragments)
    assert spec.parts == 2
    for number, (local, merged) in enumerate(played(spec)):
        w = w + gradients()[number]
        # Layers of one number each are dealt out in turn.
        turn = np.arange(5) % fragments == number % fragments
        delta = centre - w.mean(0)
        speed = np.where(turn, np.where(seen, mu * speed, 0) + delta, speed)
        moved = centre - lr * (delta + mu * speed)
        centre = np.where(turn, moved, centre)
        w = np.where(turn, moved, w)
        seen |= turn
        close(merged, centre)
        close(local, w)


def by_hand(delta, bits):
    """Cut the sorted numbers into equal parts and put each part's mean in its place."""
    flat, decoded = delta.ravel(), np.empty(delta.size)
    edges = [-(-k * delta.size // 2**bits) for k in range(2**bits + 1)]
    order = np.argsort(flat, kind="stable")
    for begin, end in pairwise(edges):
        part = order[begin:end]
        decoded[part] = flat[part].mean() if len(part) else 0.0
    return decoded.reshape(delta.shape)


@pytest.mark.parametrize(("bits", "feedback"), [(2, 1.0), (1, 0.9), (3, 0.0)])
def test_muloco_is_diloco_on_what_of_each_delta_travels(bits, feedback):
    """Four rounds of three workers: each sends, all decode, and an outer Nesterov moves them."""
    spec = MuLoCo(bits=bits, feedback=feedback)
    trained, shapes = frozenset({"a", "b"}), {"a": (5, 4), "b": (7,)}
    random = np.random.default_rng(3)
    centre = {name: random.normal(size=shape) for name, shape in shapes.items()}
    speed = {name: np.zeros(shape) for name, shape in shapes.items()}
    lost = [
        {name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(WORKERS)
    ]
    begin = {name: torch.tensor(value) for name, value in centre.items()}
    memories = [spec.memory(begin, trained)] * WORKERS
    for number in range(ROUNDS):
        deltas = [{n: random.normal(size=s) for n, s in shapes.items()} for _ in lost]
        weights = [{n: centre[n] - d[n] for n in shapes} for d in deltas]
        states = [{n: torch.tensor(v) for n, v in w.items()} for w in weights]
        coded = [spec.encode(s, m, trained) for s, m in zip(states, memories, strict=True)]
        for name in shapes:
            owed = [d[name] + feedback * e[name] for d, e in zip(deltas, lost, strict=True)]
            sent = [by_hand(value, bits) for value in owed]
            for e, value, arrived in zip(lost, owed, sent, strict=True):
                e[name] = value - arrived
            delta = np.mean(sent, axis=0)
            speed[name] = 0.6 * speed[name] + delta
            centre[name] = centre[name] - 0.7 * (delta + 0.6 * speed[name])
        memories = []
        for k, (_, memory) in enumerate(coded):
            merged = spec.merge(
                MergeInputs(
                    states=[spec.decode(sent, memory) for sent, _ in coded],
                    local=states[k], memory=memory, parameters=trained,
                    round=number, rounds=ROUNDS, error=lambda w: 0.0,
                )
            )  # fmt: skip
            memories.append(merged.memory)
            for name in shapes:
                np.testing.assert_allclose(merged.weights[name], centre[name], atol=1e-6)
                lost_part = merged.memory[f"own.lost.{name}"]
                np.testing.assert_allclose(lost_part, lost[k][name], atol=1e-6)


def test_quantising_loses_no_more_than_all_and_packs_every_bit():
    torch.manual_seed(1)
    for bits, count in ((1, 9), (2, 5), (2, 3), (3, 64), (8, 700)):
        delta = torch.randn(count) ** 3
        codes, levels = quantised(delta, bits)
        assert float((delta - levels[codes]).norm()) <= float(delta.norm())
        line = packed(codes, bits)
        assert (line.dtype, line.nbytes) == (torch.uint8, -(-count * bits // 8))
        assert torch.equal(unpacked(line, bits, count), codes)
    codes, levels = quantised(torch.zeros(6), 2)
    assert float(levels[codes].abs().max()) == 0


def test_papa_pulls_each_a_little_to_the_mean():
    w = np.array([np.linspace(-1, 1, len(NAMES))] * WORKERS)
    for (local, merged), g in zip(played(Papa(keep=0.8)), gradients(), strict=True):
        w = w + g
        mean = w.mean(0)
        w = 0.8 * w + 0.2 * mean
        close(merged, mean)
        close(local, w)
        assert np.ptp(local[:, 0]) > 0


def test_easgd_ties_workers_to_a_centre():
    centre = np.linspace(-1, 1, len(NAMES))
    w = np.array([centre] * WORKERS)
    alpha = 0.9 / WORKERS
    for (local, merged), g in zip(played(Easgd()), gradients(), strict=True):
        w = w + g
        w, centre = w - alpha * (w - centre), centre + alpha * (w - centre).sum(0)
        close(merged, centre)
        close(local, w)


def test_bmuf_filters_the_updates_of_blocks():
    centre, update = np.linspace(-1, 1, len(NAMES)), np.zeros(len(NAMES))
    eta, zeta = 1 - 1 / WORKERS, 0.8
    for (local, merged), g in zip(played(Bmuf(block_lr=zeta)), gradients(), strict=True):
        start = centre + eta * update
        update = eta * update + zeta * ((start + g).mean(0) - start)
        centre = centre + update
        close(merged, centre)
        close(local, [centre + eta * update] * WORKERS)


def test_dart_averages_from_half_of_the_time_on():
    w = np.array([np.linspace(-1, 1, len(NAMES))] * WORKERS)
    for number, (local, merged) in enumerate(played(Dart(apart=0.5))):
        w = w + gradients()[number]
        close(merged, w.mean(0))
        if number + 1 >= ROUNDS / 2:
            w = np.array([w.mean(0)] * WORKERS)
        close(local, w)


def test_soups_take_all_or_those_that_help():
    states = [as_state([v] * 5) for v in (3.0, 1.0, -1.0, 8.0)]

    def soup(recipe):
        return numbers(
            Soup(recipe=recipe)
            .merge(
                MergeInputs(
                    states=states, local=states[0], memory={}, parameters=frozenset(NAMES),
                    round=0, rounds=1, error=lambda w: abs(float(w["a"]) - 0.4),
                )
            )
            .weights
        )[0]  # fmt: skip

    assert soup("uniform") == (3 + 1 - 1 + 8) / 4
    # 1 is best; with -1 it is 0, which is better; 3 makes it 1 again, 8 worse still.
    assert soup("greedy") == 0.0


@pytest.mark.parametrize(
    "spec",
    [
        ModelAverage(), DiLoCo(), StreamingDiLoCo(tau=4), Papa(), Easgd(), Bmuf(), Dart(),
        Soup(recipe="uniform"), Soup(), EasgdAsync(), MuLoCo(),
    ],
    ids=lambda s: s.component,
)  # fmt: skip
def test_each_keeps_what_all_aggregations_must(spec):
    torch.set_default_dtype(torch.float32)
    check_aggregation(spec)


def test_fragments_have_whole_layers_and_about_as_much_each():
    sizes = {"a.weight": 900, "a.bias": 30, "b.weight": 500, "b.bias": 20, "c.weight": 400}
    spec = StreamingDiLoCo(tau=4, fragments=2)
    first, second = (spec.fragment(k, sizes) for k in (0, 1))
    assert first == {"a.weight", "a.bias"}
    assert second == {"b.weight", "b.bias", "c.weight"}
    assert spec.fragment(2, sizes) == first


def test_fragments_divide_the_interval():
    with pytest.raises(SpecError, match="which 4 fragments do not divide"):
        StreamingDiLoCo(tau=50)


def test_what_travels_is_what_is_used():
    assert [Dart(apart=0.5).exchanged(k, 4) for k in range(4)] == [0, 1, 1, 1]
    assert ModelAverage().exchanged(0, 9) == 1
    state = {
        "a.weight": torch.zeros(9),
        "b.weight": torch.zeros(4),
        "b.mean": torch.zeros(4),
    }
    trained = frozenset({"a.weight", "b.weight"})

    def travelling(aggregation, number=0):
        return set(aggregation.travelling(number, state, trained))

    assert travelling(ModelAverage()) == set(state)
    streaming = StreamingDiLoCo(tau=8, fragments=2)  # statistics of norms travel each time
    assert travelling(streaming) == {"a.weight", "b.mean"}
    assert travelling(streaming, 1) == {"b.weight", "b.mean"}
    assert travelling(EasgdAsync()) == trained
