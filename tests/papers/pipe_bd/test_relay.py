"""Who sends what to whom: every row once, in an order nobody waits for ever in."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.codec import from_builtins, to_builtins
from kdlab.papers.pipe_bd import relay
from kdlab.papers.pipe_bd.relay import edges, instructions, transfers
from kdlab.papers.pipe_bd.stages import Plan, Stage, pipeline


@st.composite
def plans(draw):
    stages = draw(st.integers(1, 5))
    widths = [draw(st.integers(1, 4)) for _ in range(stages)]
    cuts, stop = [], 0
    for _ in widths:
        stop += draw(st.integers(1, 3))
        cuts.append(stop)
    batch = draw(st.integers(max(widths), 40))
    decoupled = draw(st.booleans())
    return pipeline(batch, cuts, widths, decoupled=decoupled)


@given(plans())
def test_every_row_reaches_every_stage_once_and_from_who_has_it(plan):
    for before, after in pairwise(plan.stages):
        rows = []
        for transfer in transfers(before, after):
            has, needs = before.interval(transfer.sender), after.interval(transfer.receiver)
            assert has[0] <= transfer.start < transfer.stop <= has[1]
            assert needs[0] <= transfer.start < transfer.stop <= needs[1]
            rows += range(transfer.start, transfer.stop)
        assert sorted(rows) == list(range(plan.batch))


@given(plans(), st.integers(0, 7), st.integers(1, 3))
def test_all_devices_come_to_their_end(plan, steps, lead):
    """Carried out with blocking waits, nobody waits for ever, and buffers are not lost."""
    plan = replace(plan, lead=lead)
    programmes = {d: list(instructions(plan, d, steps)) for d in plan.devices}
    at = dict.fromkeys(plan.devices, 0)
    sent, received, reduced = set(), {}, {}
    barriers: dict[int, set[int]] = {}

    def sources(device):
        return [t.sender for t in edges(plan) if t.receiver == device]

    def targets(device):
        return [t.receiver for t in edges(plan) if t.sender == device]

    def can(device, instruction):
        step = instruction.step
        stage = plan.stages[plan.stage_of(device)]
        match instruction:
            case relay.AwaitReceive():
                return all((s, step) in sent for s in sources(device))
            case relay.AwaitSends():
                return all(step in received.get(r, set()) for r in targets(device))
            case relay.ReduceGradients():
                return reduced.setdefault((stage.first, step), set()).issuperset(
                    set(stage.devices)
                )
            case relay.Barrier():
                return barriers.setdefault(step, set()).issuperset(set(plan.devices))
        return True

    def arrive(device, instruction):
        stage = plan.stages[plan.stage_of(device)]
        match instruction:
            case relay.SendOutput():
                sent.add((device, instruction.step))
            case relay.ReduceGradients():
                reduced.setdefault((stage.first, instruction.step), set()).add(device)
            case relay.Barrier():
                barriers.setdefault(instruction.step, set()).add(device)
            case relay.PostReceive():
                # A posted receive takes the data whenever it comes.
                received.setdefault(device, set()).add(instruction.step)

    moved = True
    while moved:
        moved = False
        for device, programme in programmes.items():
            while at[device] < len(programme):
                instruction = programme[at[device]]
                arrive(device, instruction)
                if not can(device, instruction):
                    break
                at[device] += 1
                moved = True
    assert all(at[d] == len(p) for d, p in programmes.items())


def test_the_order_is_that_of_algorithm_1():
    plan = pipeline(8, [1, 2, 3], [1, 2, 1], decoupled=False)
    names = [type(i).__name__ for i in instructions(plan, 1, 1)]
    assert names == [
        "PostReceive",
        "AwaitReceive",  # line 9
        "TeacherForward",  # 10
        "SendOutput",  # 11
        "StudentStep",  # 12, 13
        "ReduceGradients",  # 14
        "Barrier",  # 15
        "Update",  # 16
        "AwaitSends",
    ]
    first = [type(i).__name__ for i in instructions(plan, 0, 1)]
    assert first[0] == "Load"  # line 8
    last = [type(i).__name__ for i in instructions(plan, 3, 1)]
    assert "SendOutput" not in last


def test_no_stage_runs_ahead_further_than_its_buffers():
    plan = replace(pipeline(4, [1, 2], [1, 1]), lead=3)
    programme = list(instructions(plan, 0, 6))
    for step in range(3, 6):
        freed = programme.index(relay.AwaitSends(step - 3))
        assert freed < programme.index(relay.TeacherForward(step))


def test_special_plans():
    plan = pipeline(8, [5], [3])
    (stage,) = plan.stages
    assert (stage.first, stage.stop, stage.rows) == (0, 5, (3, 3, 2))
    task = Plan(8, (Stage(2, 3, (0, 1), (4, 4), from_data=True),))
    assert list(task.blocks) == [2]
    assert task.stages[0].from_data


def test_a_plan_of_another_batch_keeps_its_shares():
    plan = pipeline(8, [1, 3], [1, 3])
    small = plan.of_batch(4)
    assert [s.rows for s in small.stages] == [(4,), (2, 1, 1)]
    assert plan.of_batch(8) is plan
    with pytest.raises(ValueError, match="cannot share 2 rows"):
        plan.of_batch(2)


def test_a_plan_goes_through_json():
    plan = pipeline(8, [1, 3], [1, 3], decoupled=False)
    assert from_builtins(Plan, json.loads(json.dumps(to_builtins(plan)))) == plan


def test_an_epoch_may_end_early_and_leaves_nothing_posted():
    plan = pipeline(4, [1, 2], [1, 1])
    programmes = {d: [] for d in plan.devices}
    for device, done in programmes.items():
        total = [10]
        for instruction in instructions(plan, device, lambda total=total: total[-1]):
            done.append(instruction)
            if instruction == relay.Update(2):
                total.append(5)
    posted = {i.step for i in programmes[1] if isinstance(i, relay.PostReceive)}
    sent = {i.step for i in programmes[0] if isinstance(i, relay.SendOutput)}
    left = {i.step for i in programmes[0] if isinstance(i, relay.AwaitSends)}
    assert posted == sent == left == set(range(5))


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ([Stage(0, 1, (0,), (4,), True), Stage(2, 3, (1,), (4,))], "begins at block 2"),
        ([Stage(0, 1, (0,), (3,), True)], "rows"),
        ([Stage(0, 1, (0,), (4,), True), Stage(1, 2, (0,), (4,))], "in two stages"),
        ([Stage(0, 1, (0,), (4,))], "reads the data"),
    ],
)
def test_what_is_no_plan(stages, why):
    with pytest.raises(ValueError, match=why):
        Plan(4, tuple(stages))


def test_a_batch_smaller_than_its_group_is_refused():
    with pytest.raises(ValueError, match="batch is smaller than the group"):
        Stage(0, 1, (0, 1, 2), (1, 1, 0))
    with pytest.raises(ValueError, match="cannot share 2 rows"):
        pipeline(2, [1], [3])
