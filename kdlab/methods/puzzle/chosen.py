"""Measure a library of distilled stand-ins and choose a student from it."""

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
from kdlab.methods.puzzle.measured import engine_of, latencies_ms, prepared, scores
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
    """Measured options and the choice; a resumed run reads them from their file."""

    options: list[Option]
    chosen: list[Option]
    frontier: list[tuple[float, float]]  # best score (nats) by latency (ms)
    # Of the whole networks, one image on one core
    engine: str
    teacher_ms: Amount
    student_ms: Amount

    @property
    def faster(self) -> float:
        return self.teacher_ms / max(1e-9, self.student_ms)


@dataclass(frozen=True, slots=True)
class BlockwiseModels:
    """The teacher's blocks and their stand-ins, on the CPU, in evaluation mode."""

    teacher: Normalised
    blocks: list[nn.Module]  # the teacher's
    variants: list[dict[str, nn.Module]]  # of each block, the teacher's own among them
    spec: BlockLibrary

    def network(self, chosen: Sequence[Option]) -> nn.Sequential:
        """Join the chosen parts, which keep their weights."""
        return nn.Sequential(*(self.variants[o.block][o.name] for o in chosen))


def stop_check(training: MemberTraining) -> Callable[[], None]:
    """Return a function that raises RunStopped once the user stops the run."""

    def check() -> None:
        if training.setup.stop():
            raise RunStopped("stopped by the user while blocks were chosen")

    return check


def load_parts(training: MemberTraining, path: Path) -> BlockwiseModels:
    """Load the library at this path, and its teacher, in blocks."""
    library, data = load_exported(path), training.setup.data
    spec = spec_of(path)
    assert isinstance(spec, BlockLibrary)
    teacher = training.setup.teacher.members[0].build(len(data.classes), data.shape[0])
    teacher.eval()
    blocks = cut(teacher.net, spec.cuts)
    variants = [
        {SAME: block}
        | {name: v.eval() for name, v in several.variants.items() if name != SAME}
        for block, several in zip(blocks, variant_blocks(library), strict=True)
    ]
    return BlockwiseModels(teacher, blocks, variants, spec)


def _views(teacher: Normalised, training: MemberTraining, images: int) -> list[Tensor]:
    """Return normalised views of the validation set, or of training images without one."""
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
    """Measure, solve and write down the choice, or read that of an earlier session."""
    cure = "Delete it to measure and choose again."
    stored = find_as(MeasuredChoice, training.folder / _FILE, cure)
    return stored or _measured(choice, parts, training)


def _measured(
    choice: BlockChoice, parts: BlockwiseModels, training: MemberTraining
) -> MeasuredChoice:
    training.emit(Note(message="measuring each stand-in"))
    alive, folder = stop_check(training), training.folder
    views = _views(parts.teacher, training, choice.images)
    device = torch.device(training.spec.train.chosen_device())
    moved = _moved(parts, views, device, alive)
    engine, pair = engine_of(choice.engine), _two(views)
    options = list(_options(engine, parts, pair, moved, alive))
    teacher = prepared(engine, parts.teacher.net, pair, "the teacher")

    def whole_ms(chosen: Sequence[Option]) -> tuple[float, float]:
        alive()
        student = prepared(engine, parts.network(chosen), pair, "the student")
        teacher_ms, student_ms = latencies_ms([teacher, student], [pair[:1]] * 2, alive)
        return teacher_ms, student_ms

    chosen, teacher_ms, student_ms = within(choice, options, whole_ms)
    measured = MeasuredChoice(
        options=options,
        chosen=chosen,
        frontier=frontier(options),
        engine=engine.label,
        teacher_ms=teacher_ms,
        student_ms=student_ms,
    )
    if choice.faster is not None and measured.faster < choice.faster:
        small = "" if choice.smaller is None else f" and {choice.smaller:g} times smaller"
        training.emit(
            Warned(
                message=f"No measured choice is {choice.faster:g} times as fast as the "
                f"teacher{small}; the student has the quickest parts and is "
                f"{measured.faster:.2f} times as fast. Offer cheaper student.variants, cut finer, "
                "or ask for less."
            )
        )
    names = [option.name for option in chosen]
    table = choice_table(options, chosen)
    choice_picture(options, chosen, measured.frontier, folder / "choice.png")
    training.emit(BlocksChosen(choices=names, table=table, faster=measured.faster))
    write_json(folder / _FILE, asdict(measured))  # last, so that a file is complete
    return measured


def _moved(
    parts: BlockwiseModels,
    views: Sequence[Tensor],
    device: torch.device,
    alive: Callable[[], None],
) -> list[dict[str, float]]:
    """Compute the scores on the training device; the parts return to the CPU afterwards."""
    modules = [
        *parts.blocks,
        *(v for of_block in parts.variants for v in of_block.values()),
    ]
    for module in modules:
        module.to(device)
    block_scores = scores(
        parts.blocks, parts.variants, (v.to(device) for v in views), alive
    )
    for module in modules:
        module.to("cpu")
    return block_scores


def _two(views: list[Tensor]) -> Tensor:
    """Return two images: compilers take a batch size of one for a constant."""
    return torch.cat([views[0], views[0]])[:2] if len(views[0]) == 1 else views[0][:2]


def _options(
    engine: Engine,
    parts: BlockwiseModels,
    pair: Tensor,
    moved: Sequence[Mapping[str, float]],
    alive: Callable[[], None],
) -> Iterator[Option]:
    views, inputs = pair, list[Tensor]()
    with torch.no_grad():
        for block in parts.blocks:
            inputs.append(views)
            views = block(views)
    every = [
        (b, name, variant)
        for b, v in enumerate(parts.variants)
        for name, variant in v.items()
    ]
    asks = []
    for b, name, variant in every:
        alive()
        asks.append(prepared(engine, variant, inputs[b], f"block {b} as {name!r}"))
    # The cost of a call, which the whole network pays once
    asks.append(prepared(engine, nn.Identity(), inputs[0], "nothing"))
    asked = [inputs[b][:1] for b in (*(b for b, _, _ in every), 0)]
    *took, call = latencies_ms(asks, asked, alive)
    for (b, name, variant), ms in zip(every, took, strict=True):
        free = name != SAME and not list(variant.parameters())
        yield Option(
            block=b,
            name=name,
            score=moved[b][name],
            latency_ms=0.0 if free else max(0.0, ms - call),
            parameters=parameters(variant),
        )
