"""`method: {type: methods/puzzle}`: choose a student from stand-ins for the teacher's blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kdlab.methods.api import (
    BadInput,
    ExperimentSpec,
    Fault,
    MemberResult,
    MemberTraining,
    TrainingSetup,
    register,
)
from kdlab.methods.blockwise.cutting import Cuts, Cutting
from kdlab.methods.blockwise.method import Blockwise, check
from kdlab.methods.blockwise.setup import write_architecture
from kdlab.methods.puzzle.choice import BlockChoice
from kdlab.methods.puzzle.chosen import chosen, load_parts, stop_check
from kdlab.methods.puzzle.measured import engine_of
from kdlab.models.block_library import BlockLibrary
from kdlab.models.block_variants import variant_blocks
from kdlab.models.chosen_blocks import ChosenBlocks
from kdlab.models.model import export, parameters
from kdlab.train.evaluate import evaluate
from kdlab.train.recalibration import recalibrate

_NOT_CHOSEN = {
    "student_cuts": "a library is cut as its network is",
    "search": "a student is searched or chosen",
}
_OF_ONE = ("block_loss", "block_inputs", "inherit")  # for one student of a block


@register("methods/puzzle")
@dataclass(frozen=True, kw_only=True)
class Puzzle(Blockwise, BlockChoice):
    """Distil stand-ins for each block and choose the best for a budget.

    The student is a `models/block_library`; `fine_tune` trains the chosen network as a whole.
    """

    files = (*Blockwise.files, "choice.json", "choice.png")

    def cross_faults(self) -> Iterator[Fault]:
        yield from BlockChoice.cross_faults(self)
        yield from Blockwise.cross_faults(self)
        if not self.teacher_cuts:
            yield Fault("teacher_cuts", "is empty; a library has stand-ins of named blocks")
        for name, why in _NOT_CHOSEN.items():
            if getattr(self, name):
                yield Fault(name, f"is set with {self.component}; {why}")
        for name in _OF_ONE:
            if (value := getattr(self, name)) != getattr(Blockwise, name):
                why = "stand-ins inherit, and learn behind the teacher's blocks"
                yield Fault(name, f"is {value} with {self.component}; {why}")

    @property
    def cuts(self) -> Cuts:
        """Cut the teacher at its named modules, and the library at its numbered blocks."""
        numbers = tuple(map(str, range(len(self.teacher_cuts))))
        return Cuts(self.teacher_cuts, numbers, self.blocks, self.last_loss)

    @property
    def shown_whole(self) -> int:
        """0: batch norms keep their statistics until a student is chosen."""
        return 0

    def faults(self, spec: ExperimentSpec) -> Iterator[Fault]:
        yield from super().faults(spec)
        if spec.train.clip_grad_norm is not None:
            why = (
                "stand-ins of a block would be clipped together; each is to learn by itself"
            )
            yield Fault("train.clip_grad_norm", f"is set with {self.component}: {why}")
        if not isinstance(spec.student, BlockLibrary):
            yield Fault(
                "student",
                f"is {spec.student.component}, no library of blocks; {self.component} chooses "
                "from a models/block_library",
            )
        elif spec.student.cuts != self.teacher_cuts:
            yield Fault(
                "student.cuts", "differ from method.teacher_cuts; they are of one network"
            )

    def check(self, setup: TrainingSetup) -> None:
        _check_library(setup.spec)
        cutting = check(self, setup)
        engine_of(self.engine)
        if self.smaller is not None:
            _check_size(self.smaller, cutting)

    def distil(self, training: MemberTraining) -> MemberResult:
        """Distil the whole library and choose the best student from it."""
        return self.choose(training, super().distil(training))

    def choose(self, training: MemberTraining, distilled: MemberResult) -> MemberResult:
        """Choose the best student for the budget; `distilled` is the result of its library.

        Raises:
            BadInput: an engine cannot compute a part.
            RunStopped: the user stopped the run; a resumed run measures again.
        """
        folder, data = training.folder, training.setup.data
        recipe, alive = training.spec.train, stop_check(training)
        parts = load_parts(training, Path(distilled.model_path))
        choice = chosen(self, parts, training)
        spec = ChosenBlocks(
            of=parts.spec.of.without_weights(),
            cuts=parts.spec.cuts,
            choices=tuple(option.name for option in choice.chosen),
            mean=parts.spec.mean,
            std=parts.spec.std,
        )
        model = spec.build(len(data.classes), data.shape[0])
        model.net.load_state_dict(parts.network(choice.chosen).state_dict())
        model.to(recipe.chosen_device())
        samples = training.setup.samples(training.member)
        recalibrate(model, samples, self.recalibrate, recipe.batch, alive)
        # Not a student before fine-tuning, so under a name that no export takes for one
        names = [folder / "chosen.safetensors"]
        if self.fine_tune is None:
            names = [folder / f"whole/{name}.safetensors" for name in ("student", "best")]
        for path in names:
            path.parent.mkdir(exist_ok=True)
            export(model, spec, path, data)
        tested = evaluate(model, data, data.test, recipe.evaluate_batch, alive)
        batch = recipe.evaluate_batch
        validated = evaluate(model, data, data.validation, batch, alive).top1
        return replace(
            distilled,
            last=tested,
            best=tested,
            validation_last=validated,
            validation_best=validated,
            best_epoch=distilled.epochs,
            model_path=str(names[0]),
            best_path=str(names[-1]),
            parameters=parameters(model),
            architecture=write_architecture(spec, folder),
            more={"faster_than_teacher": choice.faster},
        )


def _check_library(spec: ExperimentSpec) -> None:
    """Raise BadInput where the library is not of this teacher."""
    assert isinstance(spec.student, BlockLibrary)
    library, teacher = (
        m.without_weights().to_dict() | {"mean": None, "std": None}
        for m in (spec.student.of, spec.teachers()[0].model)
    )
    if library != teacher:
        apart = sorted(k for k in library | teacher if library.get(k) != teacher.get(k))
        raise BadInput(
            f"student.of is another network than the teacher ({', '.join(apart)} differ), and its "
            "stand-ins replace the teacher's blocks. Give both the same type and settings."
        )


def _check_size(smaller: float, cutting: Cutting) -> None:
    """Raise BadInput where no choice is as small as `method.smaller`."""
    total, least = 0, 0
    for pair in cutting.pairs:
        unchanged = parameters(pair.teacher)
        sizes = [
            parameters(variant)
            for block in variant_blocks(pair.student)
            for variant in block.variants.values()
        ]
        total, least = total + unchanged, least + min([unchanged, *sizes])
    if least * smaller > total:
        raise BadInput(
            f"method.smaller is {smaller:g}, and with the smallest stand-ins the "
            f"student has {least:,} of {total:,} parameters: {total / max(1, least):.2f} times "
            "fewer. Ask for less, or offer smaller student.variants."
        )
