"""Measure the blocks on this device: the profile that a plan is made from (section IV-C).

Each block runs at each feasible batch share, some steps to warm up and then `steps` (100 in the
paper, section V-B); the median counts. Sizes take turns, so that a machine that drifts favours
none. A supernet's steps differ by the paths that they draw; their mean over the candidates counts.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

import torch
from torch import Tensor, nn

from kdlab.methods.blockwise.pairs import BlockPair, block_loss
from kdlab.models.block_variants import all_answer
from kdlab.models.model import evaluating
from kdlab.models.proxyless import cycle_paths, mixed_blocks
from kdlab.papers.pipe_bd.block_cost import Block
from kdlab.papers.shares import shared_rows
from kdlab.train.optimizers import make_optimizer
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep

_WARM_UP = 2


def feasible_rows(batch: int, devices: int) -> list[int]:
    """Return the rows that a device may get where up to `devices` share a batch, ascending."""
    widths = range(1, min(batch, devices) + 1)
    return sorted({rows for width in widths for rows in shared_rows(batch, [1] * width)})


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of a network whose steps differ."""

    choose: Callable[[int], None] = lambda step: None  # called with the number of each step
    turn: int = 1  # steps of a full turn: as many warm up, and whole turns are timed


_ONE_PATH = Paths()


def paths_of(student: nn.Module) -> Paths:
    """Return paths that give each candidate of a supernet about as many steps.

    So a few steps have the mean of many drawn ones. Other networks have one path.
    """
    mixed = mixed_blocks(student)
    if not mixed:
        return Paths()
    return Paths(partial(cycle_paths, student), max(len(m.candidates) for m in mixed))


def profiled(
    pairs: Sequence[BlockPair],
    views: Tensor,
    rows: Sequence[int],
    *,
    steps: int = 100,
    recipe: Recipe,
    max_s: float = 60.0,
    alive: Callable[[], None] = lambda: None,
    paths: Paths = _ONE_PATH,
) -> list[Block]:
    """Measure the costs of each pair; the weights are restored afterwards.

    For each block and number of rows `steps` are timed, fewer once `max_s` seconds are over for
    all. `views` are (N, C, H, W) normalised, N at least the largest of `rows`. With the `paths`
    of a supernet the mean over a turn counts, of medians over all turns.
    """
    blocks, weights = [], copies(recipe)
    for pair in pairs:
        with torch.no_grad():
            output = pair.teacher(views)
        numbers = _numbers(steps, max_s / max(1, len(pairs)), paths.turn)
        train_step = TrainStep(recipe, pair.student.train())
        before = partial(_before_step, paths, alive)
        teacher, student = _timed(pair, views, output, rows, train_step, numbers, before)
        times = {
            "teacher_s": {r: median(s) for r, s in teacher.items()},
            # Median of each step of a turn over all turns, then the mean of these
            "student_s": {
                r: fmean(median(s[place :: paths.turn]) for place in range(paths.turn))
                for r, s in student.items()
            },
        }
        blocks.append(_sized(pair, views, output, paths, weights, **times))
        views = output
    return blocks


def _before_step(paths: Paths, alive: Callable[[], None], step: int) -> None:
    alive()
    paths.choose(step if step >= 0 else step + paths.turn)


def _timed(
    pair: BlockPair,
    views: Tensor,
    output: Tensor,
    rows: Sequence[int],
    train_step: TrainStep,
    numbers: Iterator[int],
    before: Callable[[int], None],
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Return all timed seconds of the teacher and of the student, by rows."""
    state = {k: v.clone() for k, v in pair.student.state_dict().items()}
    teacher: dict[int, list[float]] = {r: [] for r in rows}
    student: dict[int, list[float]] = {r: [] for r in rows}
    for step in numbers:
        before(step)
        for r in rows:
            taken = _seconds(partial(_forward, pair, views[:r]), views)
            work = partial(_train, pair, train_step, views[:r], output[:r])
            if pair.same:
                work = partial(_forward, pair, views[:r])
            spent = 0.0 if pair.same and pair.inputs != "student" else _seconds(work, views)
            if step >= 0:
                teacher[r].append(taken)
                student[r].append(spent)
    pair.student.load_state_dict(state)
    train_step.optimizer.zero_grad(set_to_none=True)
    return teacher, student


def _numbers(steps: int, max_s: float, turn: int) -> Iterator[int]:
    """Yield step numbers, below 0 for the warm-up: whole turns, and two steps at least."""
    begin = time.perf_counter()
    yield from range(-max(_WARM_UP, turn), 0)
    step, last = 0, -(-steps // turn) * turn
    while step < last:
        late = time.perf_counter() - begin > max_s
        if late and step >= 2 and step % turn == 0:
            return
        yield step
        step += 1


def unmeasured(
    pairs: Sequence[BlockPair],
    shapes: Sequence[Sequence[int]],
    recipe: Recipe,
    paths: Paths = _ONE_PATH,
) -> list[Block]:
    """Return blocks with their sizes and invented times, to check whether plans fit.

    `shapes` are of one row of each pair's input.
    """
    blocks, weights, batch = [], copies(recipe), recipe.batch
    for pair, shape in zip(pairs, shapes, strict=True):
        reference = next(pair.teacher.parameters(), torch.zeros(1))
        views = torch.zeros((1, *shape), dtype=reference.dtype, device=reference.device)
        with torch.no_grad():
            output = pair.teacher(views)
        times = {
            "teacher_s": {batch: 1.0},
            "student_s": {batch: float(pair.inputs == "student" or not pair.same)},
        }
        blocks.append(_sized(pair, views, output, paths, weights, **times))
    return blocks


def copies(recipe: Recipe) -> float:
    """Return the numbers of training over those of the weights: 3 with momentum, 4 with AdamW."""
    weights = nn.ParameterList([torch.zeros(64, 64, 3, 3)])
    on_cpu = {k: v for k, v in recipe.optimizer_options.items() if k != "capturable"}
    optimizer = make_optimizer(replace(recipe, optimizer_options=on_cpu), weights)
    weights[0].grad = torch.zeros_like(weights[0])
    optimizer.step()
    states = (v for state in optimizer.state.values() for v in state.values())
    numbers = sum(v.numel() for v in states if isinstance(v, Tensor) and v.dim())
    return 2 + numbers / weights[0].numel()  # weights, gradients, what the optimizer keeps


def _sized(
    pair: BlockPair,
    views: Tensor,
    output: Tensor,
    paths: Paths,
    weights: float,
    **times: dict[int, float],
) -> Block:
    student, teacher = pair.student, pair.teacher
    parameters, frozen = _bytes(student.parameters()), _bytes(teacher.parameters())
    learnt, calls = 0 if pair.same else parameters, _calls(student, views[:1])
    return Block(
        **times,
        output_bytes=pair.relayed * _bytes([output[0]]),
        gradient_bytes=learnt,
        fixed_bytes=frozen + max(parameters, weights * learnt),
        row_bytes=_row_bytes(pair, views[:1], paths)
        + (pair.relayed - 1) * _bytes([views[0], output[0]]),
        norms=0 if pair.same else sum(isinstance(m, nn.BatchNorm2d) for m, _ in calls),
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@torch.no_grad()
def _forward(pair: BlockPair, views: Tensor) -> None:
    pair.teacher(views)


def _train(pair: BlockPair, train_step: TrainStep, views: Tensor, target: Tensor) -> None:
    loss_of = partial(block_loss, train_step, pair, views, target)
    train_step.gradients(len(views), train_step.parts(len(views)), loss_of)
    train_step.update()


def _seconds(work: Callable[[], None], views: Tensor) -> float:
    if views.is_cuda:
        torch.cuda.synchronize(views.device)
    begin = time.perf_counter()
    work()
    if views.is_cuda:
        torch.cuda.synchronize(views.device)
    return time.perf_counter() - begin


@torch.no_grad()
def _calls(block: nn.Module, views: Tensor) -> list[tuple[nn.Module, object]]:
    """Run a forward pass, of a supernet on one path; return its modules and their outputs."""
    calls: list[tuple[nn.Module, object]] = []
    handles = [
        m.register_forward_hook(
            lambda module, inputs, output: calls.append((module, output))
        )
        for m in block.modules()
    ]
    with evaluating(block), all_answer(block):
        block(views)
    for handle in handles:
        handle.remove()
    return calls


def _row_bytes(pair: BlockPair, views: Tensor, paths: Paths) -> float:
    """Return the bytes of one row; of a supernet with the two largest candidates of each place.

    A round of the weights takes one path, one of the architecture two.
    """
    sizes = []
    for number in range(paths.turn):
        paths.choose(number)
        sizes.append(_activation_bytes(pair, views))
    return sum(sorted(sizes)[-2:])


def _activation_bytes(pair: BlockPair, views: Tensor) -> float:
    """Return the bytes of a row's activations; the student's count twice, for gradients."""
    total = float(_bytes([views]))
    counted = ((pair.teacher, 1), (pair.student, 2))
    for block, factor in counted[:1] if pair.same else counted:
        for module, output in _calls(block, views):
            if isinstance(output, Tensor) and next(module.children(), None) is None:
                total += factor * _bytes([output[0]])
    return total
