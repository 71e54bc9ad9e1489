"""From a library of distilled stand-ins to one student: measured, chosen, and put together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kdlab.codec import Amount
from kdlab.config.home import find_as, write_json
from kdlab.errors import RunStopped
from kdlab.events.blockwise import BlocksChosen
from kdlab.events.general import Note, Warned
from kdlab.experiment.method import MemberTraining
from kdlab.methods.puzzle.choice import BlockChoice, Option, frontier, within
from kdlab.methods.puzzle.measured import (
    engine_of,
    latencies_ms,
    prepared,
    scores,
)
from kdlab.models.block_library import BlockLibrary
from kdlab.models.block_variants import SAME, variant_blocks
from kdlab.models.blocks import cut
from kdlab.models.engines import Engine
from kdlab.models.exported import load_exported, spec_of
from kdlab.models.model import Normalised, parameters
from kdlab.report.choice import choice_picture, choice_table
from kdlab.train.evaluate import in_batches

_BATCH = 256
_FILE = "choice.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChoice:
    """What was measured and chosen; its file is kept, so that a run that goes on has the same."""

    options: list[Option]
    chosen: list[Option]
    frontier: list[tuple[float, float]]  # best score (nats) by latency (ms)
    # engine, teacher_ms and student_ms: of the whole networks, one image on one core
    engine: str
    teacher_ms: Amount
    student_ms: Amount

    @property
    def faster(self) -> float:
        return self.teacher_ms / max(1e-9, self.student_ms)


@dataclass(frozen=True, slots=True)
class BlockwiseModels:
    """Both networks in blocks, on the CPU, in evaluation mode."""

    teacher: Normalised
    blocks: list[nn.Module]  # the teacher's
    variants: list[dict[str, nn.Module]]  # of each block, the teacher's own among them
    spec: BlockLibrary

    def network(self, chosen: Sequence[Option]) -> nn.Sequential:
        """Shares its weights with the parts."""
        return nn.Sequential(*(self.variants[o.block][o.name] for o in chosen))


def stops(training: MemberTraining) -> Callable[[], None]:
    def look() -> None:
        if training.setup.stop():
            raise RunStopped("stopped by the user while blocks were chosen")

    return look


def parts_of(training: MemberTraining, path: Path) -> BlockwiseModels:
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
    return BlockwiseModels(teacher, blocks, variants, spec)


def _views(teacher: Normalised, training: MemberTraining, images: int) -> list[Tensor]:
    """Normalised views of the validation set, or of training images where there is none."""
    data = training.setup.data
    rows = data.validation if len(data.validation) else data.train
    # Spread over the set, whatever order its classes lie in.
    rows = rows[np.linspace(0, len(rows) - 1, min(images, len(rows))).astype(int)]
    shown = data.shown_ahead(in_batches(rows, _BATCH))
    raw = (torch.from_numpy(np.ascontiguousarray(batch)).float() for batch in shown)
    return [(batch - teacher.mean) / teacher.std for batch in raw]


def chosen(
    choice: BlockChoice, parts: BlockwiseModels, training: MemberTraining
) -> MeasuredChoice:
    """Measured, solved and written down; or as a session before has left it."""
    cure = "Delete it, and blocks are measured and chosen anew."
    kept = find_as(MeasuredChoice, training.folder / _FILE, cure)
    return kept or _measured(choice, parts, training)


def _measured(
    choice: BlockChoice, parts: BlockwiseModels, training: MemberTraining
) -> MeasuredChoice:
    training.emit(Note(message="measuring what each stand-in costs"))
    alive, folder = stops(training), training.folder
    views = _views(parts.teacher, training, choice.images)
    device = torch.device(training.spec.train.chosen_device())
    moved = _moved(parts, views, device, alive)
    engine, two = engine_of(choice.engine), _two(views)
    options = list(_options(engine, parts, two, moved, alive))
    teacher = prepared(engine, parts.teacher.net, two, "the teacher")

    def whole_ms(chosen: Sequence[Option]) -> tuple[float, float]:
        alive()
        student = prepared(engine, parts.network(chosen), two, "the student")
        one, other = latencies_ms([teacher, student], [two[:1]] * 2, alive)
        return one, other

    chosen, teacher_ms, student_ms = within(choice, options, whole_ms)
    made = MeasuredChoice(
        options=options,
        chosen=chosen,
        frontier=frontier(options),
        engine=engine.label,
        teacher_ms=teacher_ms,
        student_ms=student_ms,
    )
    if choice.faster is not None and made.faster < choice.faster:
        small = "" if choice.smaller is None else f" and {choice.smaller:g} times smaller"
        training.emit(
            Warned(
                message=f"No choice that was measured is {choice.faster:g} times as fast as the "
                f"teacher{small}; the student is the one whose parts are quickest, "
                f"{made.faster:.2f} times as fast. Offer cheaper student.variants, cut finer, or "
                "ask for less."
            )
        )
    names = [option.name for option in chosen]
    table = choice_table(options, chosen)
    choice_picture(options, chosen, made.frontier, folder / "choice.png")
    training.emit(BlocksChosen(choices=names, table=table, faster=made.faster))
    write_json(folder / _FILE, asdict(made))  # last: what is there is whole
    return made


def _moved(
    parts: BlockwiseModels,
    views: Sequence[Tensor],
    device: torch.device,
    alive: Callable[[], None],
) -> list[dict[str, float]]:
    """Scores, by the device that trains; the parts are on the processor again afterwards."""
    every = [*parts.blocks, *(v for of_block in parts.variants for v in of_block.values())]
    for module in every:
        module.to(device)
    found = scores(parts.blocks, parts.variants, (v.to(device) for v in views), alive)
    for module in every:
        module.to("cpu")
    return found


def _two(views: list[Tensor]) -> Tensor:
    """Two images: compilers take a batch of one for a constant."""
    return torch.cat([views[0], views[0]])[:2] if len(views[0]) == 1 else views[0][:2]


def _options(
    engine: Engine,
    parts: BlockwiseModels,
    two: Tensor,
    moved: Sequence[Mapping[str, float]],
    alive: Callable[[], None],
) -> Iterator[Option]:
    given, inputs = two, list[Tensor]()
    with torch.no_grad():
        for block in parts.blocks:
            inputs.append(given)
            given = block(given)
    every = [
        (b, name, one) for b, v in enumerate(parts.variants) for name, one in v.items()
    ]
    asks = []
    for b, name, one in every:
        alive()
        asks.append(prepared(engine, one, inputs[b], f"block {b} as {name!r}"))
    # A call alone costs something; in the whole network that is paid once.
    asks.append(prepared(engine, nn.Identity(), inputs[0], "nothing"))
    asked = [inputs[b][:1] for b in (*(b for b, _, _ in every), 0)]
    *took, call = latencies_ms(asks, asked, alive)
    for (b, name, one), ms in zip(every, took, strict=True):
        free = name != SAME and not list(one.parameters())
        yield Option(
            block=b,
            name=name,
            score=moved[b][name],
            latency_ms=0.0 if free else max(0.0, ms - call),
            parameters=parameters(one),
        )
