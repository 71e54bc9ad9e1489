"""From a library of distilled stand-ins to one student: measured, chosen, and put together."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from kdlab.config.home import write_json
from kdlab.errors import BadInput
from kdlab.events.blockwise import BlocksChosen
from kdlab.events.general import Note
from kdlab.experiment.method import MemberTraining
from kdlab.messages import typed
from kdlab.methods.blockwise.puzzle.choice import BlockChoice, Option, best, frontier
from kdlab.methods.blockwise.puzzle.measured import (
    engine_of,
    latencies_ms,
    prepared,
    scores,
)
from kdlab.methods.blockwise.setup import write_architecture
from kdlab.models.block_library import BlockLibrary
from kdlab.models.block_variants import SAME, variant_blocks
from kdlab.models.blocks import cut
from kdlab.models.chosen_blocks import ChosenBlocks
from kdlab.models.exported import load_exported, spec_of
from kdlab.models.model import Normalised, export, parameters
from kdlab.report.choice import choice_picture, choice_table
from kdlab.train.evaluate import evaluate, in_batches
from kdlab.train.recalibration import take_statistics_again
from kdlab.train.result import MemberResult

if TYPE_CHECKING:
    from kdlab.methods.blockwise.method import Blockwise

_TRIES = 6  # of budgets, until the whole student is measured to be within what was asked
_CLOSER = 0.98  # a little more than is missing
_BATCH = 256
_FILE = "choice.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was measured and chosen; its file is kept, so that a run that goes on has the same."""

    options: list[Option]
    chosen: list[Option]
    frontier: list[tuple[float, float]]  # best score (nats) by latency (ms)
    # engine, teacher_ms and student_ms: of the whole networks, one image on one core
    engine: str
    teacher_ms: float
    student_ms: float

    @property
    def faster(self) -> float:
        return self.teacher_ms / self.student_ms


@dataclass(frozen=True, slots=True)
class _Parts:
    """Both networks in blocks, on the CPU, in evaluation mode."""

    teacher: Normalised
    blocks: list[nn.Module]  # the teacher's
    variants: list[dict[str, nn.Module]]  # of each block, the teacher's own among them
    spec: BlockLibrary

    def network(self, chosen: Sequence[Option]) -> nn.Sequential:
        """Shares its weights with the parts."""
        return nn.Sequential(*(self.variants[o.block][o.name] for o in chosen))


def choose_blocks(
    method: "Blockwise", training: MemberTraining, distilled: MemberResult
) -> MemberResult:
    """The best student for the budget, with the weights its parts were distilled to.

    Raises:
        BadInput: no choice is within the budget, or an engine cannot compute a part.
    """
    choice = method.choose
    assert choice is not None
    setup, folder = training.setup, training.folder
    data, path = setup.data, Path(distilled.model_path)
    parts = _parts(training, path)
    kept = folder / _FILE
    if kept.is_file():
        made = typed(Choice, json.loads(kept.read_text()))
    else:
        training.emit(Note(message="measuring what each stand-in costs"))
        made = _chosen(choice, parts, _views(parts.teacher, training, choice.images))
        write_json(kept, asdict(made))
        table = choice_table(made.options, made.chosen)
        names = [option.name for option in made.chosen]
        training.emit(BlocksChosen(choices=names, table=table, faster=made.faster))
        choice_picture(made.options, made.chosen, made.frontier, folder / "choice.png")
    spec = ChosenBlocks(
        of=parts.spec.of.without_weights(),
        cuts=parts.spec.cuts,
        choices=tuple(option.name for option in made.chosen),
        mean=parts.spec.mean,
        std=parts.spec.std,
    )
    model = spec.build(len(data.classes), data.shape[0])
    model.net.load_state_dict(parts.network(made.chosen).state_dict())
    take_statistics_again(model, data, method.recalibrate, setup.spec.train.batch)
    chosen_path = folder / "chosen" / "student.safetensors"
    chosen_path.parent.mkdir(exist_ok=True)
    export(model, spec, chosen_path, data)
    last = evaluate(model, data, data.test)
    on_validation = evaluate(model, data, data.validation).top1
    return replace(
        distilled,
        last=last,
        best=last,
        validation_last=on_validation,
        validation_best=on_validation,
        model_path=str(chosen_path),
        best_path=str(chosen_path),
        parameters=parameters(model),
        architecture=write_architecture(spec, folder),
        more={"faster_than_teacher": made.faster},
    )


def _parts(training: MemberTraining, path: Path) -> _Parts:
    library, data = load_exported(path), training.setup.data
    spec = spec_of(path)
    assert isinstance(spec, BlockLibrary)
    teacher = training.setup.teacher.members[0].build(len(data.classes), data.shape[0])
    teacher.eval()
    blocks = cut(teacher.net, spec.cuts)
    variants = [
        {SAME: own} | {name: v.eval() for name, v in one.variants.items() if name != SAME}
        for own, one in zip(blocks, variant_blocks(library), strict=True)
    ]
    return _Parts(teacher, blocks, variants, spec)


def _views(teacher: Normalised, training: MemberTraining, images: int) -> list[Tensor]:
    """Normalised views of the validation set, or of training images where there is none."""
    data = training.setup.data
    rows = data.validation if len(data.validation) else data.train
    # Spread over the set, whatever order its classes lie in.
    rows = rows[np.linspace(0, len(rows) - 1, min(images, len(rows))).astype(int)]
    shown = data.shown_ahead(in_batches(rows, _BATCH))
    raw = (torch.from_numpy(np.ascontiguousarray(batch)).float() for batch in shown)
    return [(batch - teacher.mean) / teacher.std for batch in raw]


def _chosen(choice: BlockChoice, parts: _Parts, views: list[Tensor]) -> Choice:
    """Solved for the sum of the parts, and again until the whole is within the budget."""
    options = list(_options(choice, parts, views))
    engine, two = engine_of(choice.engine), _two(views)
    whole = parts.teacher.net
    teacher = prepared(engine, whole, two, "the teacher")
    same = sum(option.latency_ms for option in options if option.name == SAME)
    size = parameters(whole)
    most = None if choice.smaller is None else size / choice.smaller
    budget = None if choice.faster is None else same / choice.faster
    for _ in range(_TRIES):
        chosen = best(options, latency_ms=budget, parameters=most)
        if chosen is None:
            raise BadInput(_too_much(choice, options, budget, most))
        student = prepared(engine, parts.network(chosen), two, "the student")
        teacher_ms, student_ms = latencies_ms([teacher, student], [two[:1]] * 2)
        faster = teacher_ms / student_ms
        if budget is None or choice.faster is None or faster >= choice.faster:
            break
        # What the parts take does not quite add up to what the whole takes.
        budget = min(budget, sum(o.latency_ms for o in chosen))
        budget *= _CLOSER * faster / choice.faster
    else:
        raise BadInput(
            f"After {_TRIES} tries the student is {faster:.2f} times as fast as its teacher, and "
            f"method.choose.faster is {choice.faster}. Other work on this machine may disturb the "
            "measurement: try again, or ask for less."
        )
    return Choice(
        options=options,
        chosen=chosen,
        frontier=frontier(options),
        engine=engine.label,
        teacher_ms=teacher_ms,
        student_ms=student_ms,
    )


def _two(views: list[Tensor]) -> Tensor:
    """Two images: compilers take a batch of one for a constant."""
    return torch.cat([views[0], views[0]])[:2] if len(views[0]) == 1 else views[0][:2]


def _options(choice: BlockChoice, parts: _Parts, views: list[Tensor]) -> Iterator[Option]:
    engine, given, inputs = engine_of(choice.engine), _two(views), list[Tensor]()
    with torch.no_grad():
        for block in parts.blocks:
            inputs.append(given)
            given = block(given)
    moved = scores(parts.blocks, parts.variants, views)
    every = [
        (b, name, one) for b, v in enumerate(parts.variants) for name, one in v.items()
    ]
    asks = [
        prepared(engine, one, inputs[b], f"block {b} as {name!r}") for b, name, one in every
    ]
    # A call alone costs something; in the whole network that is paid once.
    asks.append(prepared(engine, nn.Identity(), inputs[0], "nothing"))
    asked = [inputs[b][:1] for b in (*(b for b, _, _ in every), 0)]
    *took, call = latencies_ms(asks, asked)
    for (b, name, one), ms in zip(every, took, strict=True):
        free = name != SAME and not list(one.parameters())
        yield Option(
            block=b,
            name=name,
            score=moved[b][name],
            latency_ms=0.0 if free else max(0.0, ms - call),
            parameters=parameters(one),
        )


def _too_much(
    choice: BlockChoice, options: Sequence[Option], budget: float | None, most: float | None
) -> str:
    blocks = {option.block for option in options}
    quickest = sum(min(o.latency_ms for o in options if o.block == b) for b in blocks)
    smallest = sum(min(o.parameters for o in options if o.block == b) for b in blocks)
    asked = [
        f"{name} {value:g}"
        for name, value in (("faster", choice.faster), ("smaller", choice.smaller))
        if value is not None
    ]
    limits = [
        text
        for text, limit in (
            (
                f"{budget or 0:.3g} ms, and the quickest blocks take {quickest:.3g} ms",
                budget,
            ),
            (f"{most or 0:,.0f} parameters, and the smallest have {smallest:,.0f}", most),
        )
        if limit is not None
    ]
    return (
        f"No choice of blocks is {' and '.join(asked)}: that leaves {'; '.join(limits)}. Ask for "
        "less, or offer cheaper student.variants."
    )
