"""The engine on ranks that talk by gloo, against one process that does block by block.

Ranks are threads; two tests, one of each kind of plan, run them as processes.
"""

import multiprocessing
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from threaded_ranks import in_threads
from torch import nn

from kdlab.methods.blockwise.pairs import pairs_of
from kdlab.methods.blockwise.stage import StageJob, Worker, stage_groups
from kdlab.models.blocks import cut
from kdlab.papers.pipe_bd.stages import Plan, Stage, pipeline
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep

BATCH, STEPS = 12, 20
CUTS = ["2", "5", "8"]


def net(channels, norm):
    layers = []
    before = 3
    for number, width in enumerate(channels):
        layers += [
            nn.Conv2d(before, width, 3, stride=2 if number == 1 else 1, padding=1),
            nn.BatchNorm2d(width) if norm else nn.Identity(),
            nn.ReLU(),
        ]
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 5)]
    return nn.Sequential(*layers)


def make_pairs(norm, dtype=torch.float32):
    """Four pairs of blocks; the student's channels differ, so there are adapters."""
    torch.manual_seed(1)
    teacher = net((8, 8, 12, 12), norm).to(dtype)
    student = net((4, 8, 6, 12), norm).to(dtype)
    views = torch.randn(BATCH, 3, 8, 8, dtype=dtype)
    with torch.no_grad():  # statistics that are not those of a fresh network
        teacher.train()
        teacher(views)
    teacher.eval()
    return pairs_of(cut(teacher, CUTS), cut(student, CUTS), views[:2])


def batch(step, dtype=torch.float32):
    chance = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 3, 8, 8, generator=chance, dtype=dtype)


def optimizers_of(pairs):
    return [torch.optim.SGD(p.student.parameters(), 0.05, momentum=0.9) for p in pairs]


def state(pairs):
    return [{k: v.clone() for k, v in p.student.state_dict().items()} for p in pairs]


def one_after_another(norm, steps, dtype=torch.float32, follows=False):
    """Train block by block in one process, without the engine."""
    torch.set_num_threads(1)
    pairs = make_pairs(norm, dtype)
    optimizers = optimizers_of(pairs)
    for step in range(steps):
        source = inputs = batch(step, dtype)
        for pair, optimizer in zip(pairs, optimizers, strict=True):
            pair.student.train()
            with torch.no_grad():
                target = pair.teacher(source)
            optimizer.zero_grad()
            output = pair.student(inputs)
            pair.loss(output, target).backward()
            optimizer.step()
            source, inputs = target, output.detach() if follows else target
    return state(pairs)


SHAPES = {0: (3, 8, 8), 1: (8, 8, 8), 2: (8, 4, 4), 3: (12, 4, 4)}


def rank(number, plan, norm, steps, dtype, how, prebuilt=None, *, follows=False, **recipe):
    """One device in a group that is up: (its blocks' state, the parts it did)."""
    stage = plan.stages[plan.stage_of(number)]
    pairs = (prebuilt or make_pairs(norm, dtype))[stage.first : stage.stop]
    for pair in pairs if follows else ():
        pair.inputs = "student"
    job = StageJob(
        pairs,
        [
            TrainStep(Recipe(lr=0.05, **recipe), pair.student, optimizer=optimizer)
            for pair, optimizer in zip(pairs, optimizers_of(pairs), strict=True)
        ],
        load=lambda step, start, stop: batch(step, dtype)[start:stop],
        norm=how,
    )
    worker = Worker(plan, number, job, stage_groups([plan]), SHAPES[stage.first])
    worker.run(steps)
    return {"state": state(pairs), "parts": [s.part for s in worker.spans]}


def process(number, plan, norm, steps, dtype, how, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meet", rank=number, world_size=len(plan.devices)
    )
    torch.save(rank(number, plan, norm, steps, dtype, how), f"{folder}/{number}.pt")
    dist.destroy_process_group()


def in_processes(plan, folder, arguments):
    # Forked from one process that has imported torch: fifteen imports took a minute.
    multiprocessing.set_forkserver_preload(["torch", "kdlab.methods.blockwise.stage"])
    processes.start_processes(
        process,
        (plan, *arguments, str(folder)),
        nprocs=len(plan.devices),
        start_method="forkserver",
    )
    return [torch.load(folder / f"{d}.pt") for d in plan.devices]


def trained(
    plan, folder=None, *, norm=True, steps=STEPS, dtype=torch.float32, how="sync", **recipe
):
    """Train by a plan; return (blocks of each group's first rank in order, parts of each rank).

    With a folder, ranks are processes, which leave their results there.
    """
    arguments = (norm, steps, dtype, how)
    if folder is not None:
        results = in_processes(plan, folder, arguments)
    else:
        world = len(plan.devices)
        # Threads would draw from the generator in turns.
        drawn = [make_pairs(norm, dtype) for _ in range(world)]
        results = in_threads(world, lambda r: rank(r, plan, *arguments, drawn[r], **recipe))
    blocks = [b for stage in plan.stages for b in results[stage.devices[0]]["state"]]
    for stage in plan.stages:
        for device in stage.devices[1:]:  # a group has one model
            same(results[stage.devices[0]]["state"], results[device]["state"])
    return blocks, {d: result["parts"] for d, result in enumerate(results)}


def same(first, second, tolerance=0.0):
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert torch.allclose(
                a[key].double(), b[key].double(), rtol=0, atol=tolerance
            ), (key, float((a[key].double() - b[key].double()).abs().max()))


@pytest.mark.processes("two ranks in processes, each with torch")
def test_relaying_between_processes_is_bit_identical_to_one_process(tmp_path):
    expected = one_after_another(norm=True, steps=STEPS)
    blocks, parts = trained(pipeline(BATCH, [1, 4], [1, 1]), tmp_path)
    same(blocks, expected)
    assert "receive" in parts[1]


@pytest.mark.long
def test_relaying_with_and_without_a_barrier_is_bit_identical_to_one_process():
    expected = one_after_another(norm=True, steps=STEPS)
    plan = pipeline(BATCH, [1, 3, 4], [1, 1, 1])
    decoupled, parts = trained(plan)
    same(decoupled, expected)
    assert "receive" in parts[1]
    assert "barrier" not in parts[1]
    waiting, parts = trained(replace(plan, decoupled=False))
    same(waiting, expected)
    assert parts[1].count("barrier") == STEPS


def test_students_that_follow_each_other_are_relayed_to_the_last_bit():
    """They learn something else than they do behind the teacher's blocks."""
    expected = one_after_another(norm=True, steps=4, follows=True)
    blocks, parts = trained(pipeline(BATCH, [1, 3, 4], [1, 1, 1]), steps=4, follows=True)
    same(blocks, expected)
    assert parts[1].count("receive") == 4
    with pytest.raises(AssertionError):
        same(blocks, one_after_another(norm=True, steps=4))


def test_students_that_follow_each_other_share_a_batch_in_parts():
    expected = one_after_another(False, 2, torch.float64, follows=True)
    options = {"norm": False, "steps": 2, "dtype": torch.float64, "follows": True}
    blocks, _ = trained(UNEVEN, **options, accumulate=2)
    same(blocks, expected, tolerance=1e-6)


def test_a_block_that_is_the_teachers_passes_on_what_the_student_makes():
    pairs, seen, outputs = make_pairs(norm=True), [], []
    pairs[2].same = True
    pairs[2].teacher = nn.Sequential(nn.Conv2d(8, 12, 1), nn.ReLU()).eval()
    pairs[1].student.register_forward_hook(lambda m, inputs, out: outputs.append(out))
    pairs[3].student.register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0]))
    plan = Plan(BATCH, (Stage(0, 4, (0,), (BATCH,), from_data=True),))
    before = state(pairs[2:3])
    in_threads(
        1, lambda r: rank(r, plan, True, 2, torch.float32, "sync", pairs, follows=True)
    )
    with torch.no_grad():
        wanted = [pairs[2].teacher(output) for output in outputs]
    assert len(seen) == 2
    assert all(map(torch.equal, seen, wanted))
    same(state(pairs[2:3]), before)


def test_a_batch_in_parts_is_the_whole_batch_for_blocks_whose_rows_do_not_meet():
    """Two devices with unequal numbers of rows cut them into equally many parts."""
    expected = one_after_another(norm=False, steps=2, dtype=torch.float64)
    plan = Plan(BATCH, (Stage(0, 4, (0, 1), (7, 5), from_data=True),))
    blocks, _ = trained(plan, norm=False, steps=2, dtype=torch.float64, accumulate=3)
    same(blocks, expected, tolerance=1e-6)


def test_a_trace_tells_the_parts_of_a_batch_apart():
    """The backward pass of a part is not taken for the forward one of the next."""
    plan = Plan(BATCH, (Stage(0, 4, (0,), (BATCH,), from_data=True),))
    _, parts = trained(plan, steps=1, accumulate=3)
    computed = [part for part in parts[0] if part in ("student", "backward")]
    assert computed == ["student", "backward"] * 3 * 4


@pytest.mark.parametrize("devices", [[1, 1], [1, 2]], ids=["alone", "shared"])
def test_in_bf16_the_students_learn_other_numbers_and_the_teachers_relay_their_own(devices):
    blocks, parts = trained(pipeline(BATCH, [2, 4], devices), steps=2, precision="bf16")
    assert "receive" in parts[1]
    rounded, exact = blocks, one_after_another(norm=True, steps=2)
    with pytest.raises(AssertionError):
        same(rounded, exact)
    same(rounded, exact, tolerance=0.1)


# Uneven rows, and three rows meet two.
UNEVEN = Plan(
    BATCH,
    (Stage(0, 2, (0, 1), (7, 5), from_data=True), Stage(2, 4, (2, 3, 4), (3, 5, 4))),
)


HYBRID = {
    "ir": pipeline(BATCH, [4], [3]),
    "shared-last": pipeline(BATCH, [2, 4], [1, 2]),
    "shared-first": pipeline(BATCH, [1, 4], [2, 1]),
    "uneven": UNEVEN,
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("plan", HYBRID.values(), ids=HYBRID)
@pytest.mark.long
def test_hybrid_plans_equal_the_whole_batch_in_double_precision(norm, plan):
    expected = one_after_another(norm, steps=1, dtype=torch.float64)
    blocks, parts = trained(plan, norm=norm, steps=1, dtype=torch.float64)
    same(blocks, expected, tolerance=1e-6)
    shared = next(s for s in plan.stages if len(s.devices) > 1)
    assert "all_reduce" in parts[shared.devices[0]]


@pytest.mark.processes("three ranks in processes, each with torch")
def test_a_shared_stage_between_processes_equals_the_whole_batch(tmp_path):
    expected = one_after_another(True, steps=1, dtype=torch.float64)
    plan = HYBRID["shared-last"]
    blocks, _ = trained(plan, tmp_path, steps=1, dtype=torch.float64)
    same(blocks, expected, tolerance=1e-6)


@pytest.mark.long
def test_without_synchronised_norm_a_shared_stage_differs():
    """So the option has an effect, and the test above could fail."""
    plan = pipeline(BATCH, [4], [2])
    with pytest.raises(AssertionError, match="running_mean"):  # the group's models differ
        trained(plan, steps=1, dtype=torch.float64, how="local")
