"""The planner against a search of everything, with group, row and cost code of its own."""

import random
from functools import cache
from itertools import combinations, product
from math import inf

import pytest
from tests_support import examples

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts, at
from kdlab.papers.pipe_bd.execution_plan import memory_bytes, programme
from kdlab.papers.pipe_bd.hybrid_plan import _bound_s, _Search, best_plan, count, relaying
from kdlab.papers.pipe_bd.layerwise import packed

BATCH = 6
LEAD = 2


class Table:
    """A random profile; all numbers are multiples of 1/64, so that sums are exact."""

    def __init__(self, seed, blocks=5, devices=4, kinds=3):
        chance = random.Random(seed)
        self.blocks = chance.randint(1, blocks)
        self.devices = chance.randint(1, devices)
        self.names = [f"kind{k}" for k in range(chance.randint(1, kinds))]
        self.of = [chance.choice(self.names) for _ in range(self.devices)]

        def times():
            slowly = sorted(chance.randint(1, 640) for _ in range(BATCH))
            return {r + 1: s / 64 for r, s in enumerate(slowly)}

        def seconds():
            return {n: [times() for _ in range(self.blocks)] for n in self.names}

        self.teacher, self.student = seconds(), seconds()
        sizes = [[chance.choice([0, 8, 64]) for _ in range(self.blocks)] for _ in range(4)]
        self.output, self.gradient, self.fixed, self.row = sizes
        self.norms = [chance.choice([0, 1, 2]) for _ in range(self.blocks)]
        self.links = {
            n: DeviceLink(
                bytes_per_s=chance.choice([8.0, 64.0, inf]),
                latency_s=chance.choice([0.0, 0.25]),
                overlap=chance.choice([0.0, 0.5, 1.0]),
            )
            for n in self.names
        }
        self.load = chance.choice([0.0, 3.0, 30.0])
        self.load_overlap = chance.choice([0.0, 1.0])
        self.memory = None
        if chance.random() < 0.5:
            self.memory = [float(chance.randint(10, 99)) * 10 for _ in range(self.devices)]

    def profile(self):
        return Profile(
            types={
                n: [
                    Block(
                        teacher_s=self.teacher[n][b],
                        student_s=self.student[n][b],
                        output_bytes=self.output[b],
                        gradient_bytes=self.gradient[b],
                        fixed_bytes=self.fixed[b],
                        row_bytes=self.row[b],
                        norms=self.norms[b],
                    )
                    for b in range(self.blocks)
                ]
                for n in self.names
            },
            devices=self.of,
            links=self.links,
            load_s=self.load,
            load_overlap=self.load_overlap,
            memory_bytes=self.memory,
        )


class Everything:
    """Every cut, every set of devices for every stage, every number of rows."""

    def __init__(self, table, decoupled, widest=None):
        self.t, self.decoupled, self.widest = table, decoupled, widest or table.devices
        self.stage = cache(self._stage)

    def best(self):
        t, found = self.t, inf
        for stages in range(1, min(t.blocks, t.devices) + 1):
            for inner in combinations(range(1, t.blocks), stages - 1):
                ends = [0, *inner, t.blocks]
                for given in product(range(stages), repeat=t.devices):
                    groups = [
                        tuple(d for d, s in enumerate(given) if s == k)
                        for k in range(stages)
                    ]
                    if all(1 <= len(g) <= self.widest for g in groups):
                        found = min(found, self.step(ends, groups))
        return found

    def step(self, ends, groups):
        relayed, latest = 0.0, 0.0
        for first, stop, group in zip(ends, ends[1:], groups, strict=False):
            seconds, relay = self.stage(first, stop, group)
            latest = max(latest, relayed + seconds)
            relayed += 0.0 if self.decoupled else relay
        return latest

    def _stage(self, first, stop, group):
        best = (inf, inf)
        for rows in product(range(1, BATCH + 1), repeat=len(group)):
            if sum(rows) == BATCH:
                shared = self.all_reduce(first, stop, group)
                every = [
                    self.device(first, stop, d, r, shared)
                    for d, r in zip(group, rows, strict=True)
                ]
                best = min(best, tuple(map(max, zip(*every, strict=True))))
        return best

    def device(self, first, stop, device, rows, shared):
        t = self.t
        name, blocks = t.of[device], range(first, stop)
        link = t.links[name]
        taught = sum(t.teacher[name][b][rows] for b in blocks)
        learned = sum(t.student[name][b][rows] for b in blocks)
        came = self.over(link, rows * t.output[first - 1]) if first else 0.0
        left = self.over(link, rows * t.output[stop - 1]) if stop < t.blocks else 0.0
        loads = t.load * rows / BATCH if first == 0 else 0.0
        own_loads = (1 - t.load_overlap) * loads
        busy = taught + learned + (1 - link.overlap) * (came + left) + own_loads + shared
        if t.memory is not None:
            sent = t.output[stop - 1] if stop < t.blocks else 0
            of_row = sum(t.row[b] for b in blocks) + LEAD * sent
            if sum(t.fixed[b] for b in blocks) + rows * of_row > t.memory[device]:
                return inf, inf
        relay = taught + (1 - link.overlap) * came + left + own_loads
        if not self.decoupled:
            return max(busy, loads), relay
        return max(busy, loads, link.overlap * came, link.overlap * left), relay

    def over(self, link, size):
        return link.latency_s + size / link.bytes_per_s if size else 0.0

    def all_reduce(self, first, stop, group):
        t, count = self.t, len(group)
        if count == 1:
            return 0.0
        size, norms = (sum(x[b] for b in range(first, stop)) for x in (t.gradient, t.norms))
        turns = 2 * (count - 1)

        def ring(link, size):
            return turns * (link.latency_s + size / count / link.bytes_per_s)

        links = [t.links[t.of[d]] for d in group]
        return max(ring(k, size) for k in links) + norms * 2 * max(
            ring(k, 0) for k in links
        )


@pytest.mark.tiered
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("part", range(10))
@pytest.mark.long
def test_no_plan_is_better_than_the_planned_one(part, decoupled):
    """Up to a thousand tables with unlike devices, links and memory, for each kind of plan."""
    for seed in range(part, examples(1000, ci=300, quick=20), 10):
        table = Table(seed)
        costs = StageCosts(table.profile(), BATCH, lead=LEAD)
        found = best_plan(costs, decoupled=decoupled)
        expected = Everything(table, decoupled).best()
        assert found.step_s == pytest.approx(expected, rel=1e-12), seed
        assert found.bound_s <= found.step_s
        if decoupled:
            assert found.bound_s == found.step_s
        if found.plan is None:
            continue
        plan = found.plan
        assert costs.step_s(plan) == pytest.approx(expected, rel=1e-12), seed
        assert sorted(plan.devices) == list(range(table.devices))
        assert plan.blocks == range(table.blocks)
        assert plan.decoupled == decoupled


@pytest.mark.parametrize("decoupled", [True, False])
def test_teacher_relaying_is_the_best_of_its_kind(decoupled):
    for seed in range(examples(200)):
        table = Table(seed)
        costs = StageCosts(table.profile(), BATCH, lead=LEAD)
        found = relaying(costs, decoupled=decoupled)
        expected = Everything(table, decoupled, widest=1).best()
        assert found.step_s == pytest.approx(expected, rel=1e-12), seed


@pytest.mark.tiered
@pytest.mark.parametrize("decoupled", [True, False])
def test_where_there_are_too_many_kinds_a_plan_comes_with_a_bound(decoupled):
    """The search of neighbours in every order of the kinds, where the whole one says the truth."""
    for seed in range(examples(150, ci=50, quick=5)):
        table = Table(seed, kinds=2)
        costs = StageCosts(table.profile(), BATCH, lead=LEAD)
        best = best_plan(costs, decoupled=decoupled).step_s
        search = _Search(costs, decoupled=decoupled, widest=costs.devices)
        orders = [[0, 1], [1, 0]] if len(search.kinds) == 2 else [range(len(search.kinds))]
        found = [search.in_order(search.ordered(order)) for order in orders]
        assert all(one.step_s >= best * (1 - 1e-12) for one in found), seed
        if len(search.kinds) == 1:
            assert found[0].step_s == pytest.approx(best, rel=1e-12)
        assert _bound_s(costs, search.kinds) <= best * (1 + 1e-9), seed


def many(blocks, devices, kinds):
    chance = random.Random(blocks)
    made = []
    for _ in range(blocks):
        whole = chance.uniform(1.0, 10.0)
        times = {r: whole * (0.1 + 0.9 * r / 256) for r in (1, 16, 64, 128, 256)}
        own = {r: 2 * s for r, s in times.items()}
        made.append(
            Block(teacher_s=times, student_s=own, output_bytes=4e3, gradient_bytes=1e6)
        )
    slower = [
        Block(
            teacher_s={r: 2.3 * s for r, s in b.teacher_s.items()},
            student_s={r: 1.7 * s for r, s in b.student_s.items()},
            output_bytes=4e3,
            gradient_bytes=1e6,
        )
        for b in made
    ]
    types = {"fast": made, "slow": slower}
    of = [sorted(types)[k * kinds // devices] for k in range(devices)]
    profile = Profile(types=types, devices=of, link=DeviceLink(bytes_per_s=1e9))
    return StageCosts(profile, 256)


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.long
def test_64_blocks_on_64_devices(kinds):
    costs = many(64, 64, kinds)
    found = best_plan(costs)
    assert costs.step_s(found.plan) == pytest.approx(found.step_s)
    assert sorted(found.plan.devices) == list(range(64))
    assert found.looked_at < 100_000  # of 4 million stages and more
    assert found.bound_s <= found.step_s < 1.4 * found.bound_s
    why = programme("ahd", costs).why
    assert ("no plan is faster than" in why) == (kinds == 2)


@pytest.mark.parametrize(
    ("blocks", "devices", "plans"), [(6, 4, 56), (10, 8, 11440), (10, 10, 48620), (1, 5, 1)]
)
def test_the_number_of_plans(blocks, devices, plans):
    """56 for the authors' six blocks and four devices, as their code enumerates them."""
    assert count(blocks, devices) == plans


def even(teacher, student, rows=(64, 128, 256)):
    return Block(
        teacher_s={r: teacher * r / 256 for r in rows},
        student_s={r: student * r / 256 for r in rows},
    )


def test_a_heavy_first_block_is_shared_as_in_figure_3d():
    """Section VII-A: where block 0 dominates, AHD helps and relaying alone does not."""
    blocks = [even(1.0, 2.0), *[even(0.1, 0.2) for _ in range(5)]]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 4), 256)
    found, relayed = best_plan(costs), relaying(costs)
    assert relayed.step_s == pytest.approx(3.0)
    assert found.step_s == pytest.approx(4.5 / 4)
    assert len(found.plan.stages[0].devices) >= 3


def test_rows_of_unlike_devices_are_those_that_end_together():
    fast, slow = even(0.1, 0.2), even(0.2, 0.4)
    profile = Profile(types={"fast": [fast], "slow": [slow]}, devices=["slow", "fast"])
    (stage,) = best_plan(StageCosts(profile, 256)).plan.stages
    assert stage.devices == (0, 1)
    assert stage.rows == (85, 171)


def test_a_device_gets_the_blocks_that_it_is_good_at():
    """Whatever its number: the second device is ten times faster at the first block."""
    profile = Profile(
        types={"a": [even(9, 1), even(1, 0)], "b": [even(0.9, 0.1), even(9, 1)]},
        devices=["a", "b"],
    )
    found = best_plan(StageCosts(profile, 256), widest=1)
    assert [s.devices for s in found.plan.stages] == [(1,), (0,)]
    assert found.step_s == pytest.approx(1.0)


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not():
    blocks = [
        Block(teacher_s={8: 1.0}, student_s={8: 1.0}, fixed_bytes=6.0) for _ in range(4)
    ]
    profile = Profile(types={"a": blocks}, devices=["a"] * 2, memory_bytes=[6.0, 18.0])
    costs = StageCosts(profile, 8)
    found = best_plan(costs)
    assert sorted((s.stop - s.first, s.devices) for s in found.plan.stages) == [
        (1, (0,)),
        (3, (1,)),
    ]
    needed = memory_bytes(programme("ahd", costs), costs)
    assert needed == [6.0, 18.0]
    too_small = Profile(types={"a": blocks}, devices=["a"] * 2, memory_bytes=[5.0, 9.0])
    assert best_plan(StageCosts(too_small, 8)).plan is None


def test_without_decoupling_another_plan_may_be_the_best():
    """Fig. 3b: with a barrier the last device's teacher starts after all before it."""
    blocks = [even(1.0, 2.0) for _ in range(3)]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 3), 256)
    assert relaying(costs).step_s == pytest.approx(3.0)
    assert relaying(costs, decoupled=False).step_s == pytest.approx(5.0)
    waiting = best_plan(costs, decoupled=False)
    assert waiting.step_s == pytest.approx(3.0, rel=0.01)  # 86 of 256 rows are a third
    assert [s.devices for s in waiting.plan.stages] == [(0, 1, 2)]


def test_a_loader_counts_where_it_is_slower_than_the_computing():
    """Each process loads its own rows: three devices on the first block load three times faster."""
    blocks = [even(0.1, 0.2) for _ in range(2)]
    for overlap, alone in ((1.0, 10.0), (0.0, 10.6)):
        profile = Profile(
            types={"gpu": blocks}, devices=["gpu"], load_s=10.0, load_overlap=overlap
        )
        assert best_plan(StageCosts(profile, 256)).step_s == pytest.approx(alone)
    profile = Profile(
        types={"gpu": blocks}, devices=["gpu"] * 4, load_s=12.0, load_overlap=1.0
    )
    found = best_plan(StageCosts(profile, 256))
    assert found.step_s == pytest.approx(3.0)
    assert len(found.plan.stages[0].devices) == 4


def test_more_rows_never_take_less_time():
    noisy = {4: 1.0, 8: 3.0, 16: 2.0, 32: 5.0}
    seconds = [at(noisy, r) for r in range(1, 65)]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 1.0 / 4
    assert at({8: 1.0, 16: 3.0}, 1) == pytest.approx(1 / 8)
    assert at({8: 1.0, 16: 1.5}, 4) == pytest.approx(0.75)
    assert at({8: 1.0}, 16) == 2.0


def test_the_baselines_and_the_ideal():
    blocks = [even(1.0, 2.0) for _ in range(4)]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 2), 256)
    assert costs.ideal_s() == pytest.approx(12.0 / 2)
    # Block k runs k + 1 teachers and one student, all on half the rows.
    assert costs.data_parallel_s() == pytest.approx((1 + 2 + 3 + 4 + 4 * 2) / 2)
    # Whole tasks take 3, 4, 5 and 6; by themselves all blocks are alike.
    packing = packed(4, 2, costs.own_s, costs.task_s)
    assert packing.tasks == ((0, 2), (1, 3))
    assert packing.seconds == pytest.approx((3 + 5, 4 + 6))
