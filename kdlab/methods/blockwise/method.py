"""`method: {type: methods/blockwise}`: settings of blockwise distillation, and their checks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch

from kdlab.codec import from_builtins
from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.errors import BadInput
from kdlab.experiment.groups import rank_group
from kdlab.experiment.method import MemberTraining, MethodSpec, recipe_faults
from kdlab.experiment.setup import TrainingSetup, network_of
from kdlab.experiment.spec import ExperimentSpec
from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.cutting import Cuts, Cutting
from kdlab.methods.blockwise.profiling import copies, paths_of, unmeasured
from kdlab.methods.blockwise.search import ArchitectureSearch
from kdlab.methods.blockwise.setup import cutting_of, identity_of, memory_of, smallest_batch
from kdlab.methods.blockwise.whole import train_whole
from kdlab.models.block_variants import variant_blocks
from kdlab.models.proxyless import mixed_blocks
from kdlab.papers.edl_dist.generations import Generations
from kdlab.papers.pipe_bd.block_cost import Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import RELAYED, NoPlan, PlanName, programme
from kdlab.papers.pipe_bd.stages import LEAD
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import SourceSpec
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult
from kdlab.train.sync_norm import check_norms

_POSITIVE = Range(ge=1)
_CPU = torch.device("cpu")

_NOT_BLOCKWISE = {
    "label_smoothing": "blocks learn without labels",
    "hard_loss": "blocks learn without labels",
    "layer_decay": "it counts the layers of a whole network",
    "ema": "the mean of a block is nobody's input: each learns behind its teacher's",
    "channels_last": "what devices relay lies in PyTorch's own order",
    "compile": "blocks meet in their norms, and a search takes other paths in each step",
}


@register("methods/blockwise")
@dataclass(frozen=True, kw_only=True)
class Blockwise(MethodSpec):
    """Each student block learns from its teacher block, in a pipeline of devices (Pipe-BD).

    plan: `ahd` searches the best pipeline, `tr` gives each stage one device, `ir` has every
        device train all blocks; `dp` and `ls` are the baselines.
    compare: plans to compare; each trains once.
    replan: run some steps of `ahd` and of `tr`, and train with the faster plan.
    decoupled: DPU; false waits for all devices before each update.
    lead: steps a stage may be ahead of the next; each costs memory for relayed outputs.
    devices: ranks, each a process.
    teacher_cuts, student_cuts: modules that the blocks end with, for both networks or for
        neither; the last block is the rest.
    blocks: number of blocks where there are no cuts, of about equal work in the teacher.
    inherit: a student of the teacher's family, such as models/separable of it, begins with the
        teacher's tensors of the same name and shape, and separable convolutions as the nearest
        to what they replace; blocks equal to the teacher's are not trained.
    block_loss: of blocks whose loss is a squared error: that error (`mse`), or divided by the
        variance of each of the teacher's channels (`relative`).
    block_inputs: a student block gets the outputs of the teacher's block before it (section
        II-A), or of the `student`'s, so that it corrects the errors before it.
    last_loss: of the last block, whose outputs are logits.
    bn: `sync` takes batch statistics over the whole batch of a shared stage.
    recalibrate: training images for new batch norm statistics of the whole student before it is
        evaluated, since its blocks learned on other inputs. 0 keeps the statistics.
    profile: a profile.json of an earlier run; null measures.
    profile_steps: timed steps for each block and number of rows, fewer after profile_s.
    profile_s: seconds of measuring, about.
    memory_gb: of each device; null takes the device's memory.
    fine_tune: recipe that then trains the whole student, in one process, with the experiment's
        soft_labels and loss.
    search: architecture search; the student is a supernet.
    retrain: recipe that trains the network of a search from fresh weights, in one process,
        with the experiment's soft_labels and loss.
    standby: started processes that wait to replace a lost rank.
    hang_s: seconds without a heartbeat after which a rank is killed and replaced.
    """

    needs_teacher: ClassVar[bool] = True
    steers_loss: ClassVar[bool] = False  # blocks' losses have no settings
    files: ClassVar[tuple[str, ...]] = (
        "plan.json",
        "trace.json",
        "gantt.svg",
        "breakdown.png",
        "architecture.yaml",
    )

    plan: PlanName = "ahd"
    compare: tuple[PlanName, ...] = ()
    replan: bool = True
    decoupled: bool = True
    lead: Annotated[int, Range(ge=1, le=64)] = LEAD
    devices: Annotated[int, Range(ge=1, le=64)] = 2
    teacher_cuts: tuple[str, ...] = ()
    student_cuts: tuple[str, ...] = ()
    blocks: Annotated[int, _POSITIVE] = 4
    inherit: bool = True
    block_loss: Literal["relative", "mse"] = "mse"
    block_inputs: Literal["teacher", "student"] = "teacher"
    last_loss: Literal["soft_cross_entropy", "mse"] = "soft_cross_entropy"
    bn: Literal["sync", "local"] = "sync"
    recalibrate: Annotated[int, Range(ge=0)] = 1024
    profile: str | None = None
    profile_steps: Annotated[int, _POSITIVE] = 100
    profile_s: Annotated[float, POSITIVE] = 20.0
    memory_gb: Annotated[float, POSITIVE] | None = None
    fine_tune: Recipe | None = None
    search: ArchitectureSearch | None = None
    retrain: Recipe | None = None
    standby: Annotated[int, Range(ge=0, le=4)] = 0
    hang_s: Annotated[float, POSITIVE] = 60.0

    def cross_faults(self) -> Iterator[Fault]:
        teacher, student = self.cuts.teacher, self.cuts.student
        if bool(teacher) != bool(student):
            missing = "student_cuts" if teacher else "teacher_cuts"
            yield Fault(missing, "is empty; cut both networks, or neither")
        elif len(teacher) != len(student):
            yield Fault(
                "student_cuts",
                f"has {len(student)} modules and teacher_cuts {len(teacher)}; blocks are "
                "trained in pairs",
            )
        if self.retrain is not None and self.search is None:
            yield Fault("retrain", "is set without search; fine_tune trains the student on")
        if self.fine_tune is not None and self.search is not None:
            yield Fault("fine_tune", "is of no use after a search; use retrain")
        if len(set(self.compare)) < len(self.compare):
            yield Fault("compare", f"is {list(self.compare)}; name each plan once")
        if self.block_inputs == "student":
            yield from self._following_faults()

    def _following_faults(self) -> Iterator[Fault]:
        """Yield a fault for each setting that excludes `block_inputs: student`."""
        apart = [name for name in self.plans() if name not in RELAYED]
        why = (
            (self.search is not None, "a search draws another path in each step"),
            (not self.decoupled, "without DPU devices would wait for each other in a row"),
            (bool(apart), f"plan {', '.join(apart)} trains blocks apart, with no relay"),
        )
        for hinders, reason in why:
            if hinders:
                yield Fault("block_inputs", f"is student, and {reason}; use: teacher")

    @property
    def cuts(self) -> Cuts:
        """Where to cut both networks."""
        names = self.teacher_cuts, self.student_cuts
        return Cuts(
            *names,
            self.blocks,
            self.last_loss,
            self.inherit,
            self.block_loss,
            self.block_inputs,
        )

    @property
    def shown_whole(self) -> int:
        """Images for new batch norm statistics of the distilled student."""
        return self.recalibrate

    @property
    def afterwards(self) -> Recipe | None:
        """Recipe that trains the whole student after its blocks, or None."""
        return self.fine_tune or self.retrain

    def plans(self) -> tuple[PlanName, ...]:
        return self.compare or (self.plan,)

    # The interface of kdlab/experiment/method.py

    def faults(self, spec: ExperimentSpec) -> Iterator[Fault]:
        count = len(spec.teachers())
        if count != 1:
            has = "is missing" if not count else f"has {count} members"
            yield Fault("teacher", f"{has}; {self.component} needs one, block by block")
        if spec.aggregation.joins != "nothing":
            yield Fault(
                "aggregation",
                f"is {spec.aggregation.component}; {self.component} shares gradients itself",
            )
        if self.afterwards is None and spec.soft_labels != NoTeacher():
            yield Fault(
                "soft_labels",
                f"is {spec.soft_labels.component}, and only method.fine_tune or "
                "method.retrain would use it",
            )
        if spec.train.precision == "fp16":
            yield Fault("train.precision", "is fp16; blocks take fp32 or bf16, unscaled")
        after = "method.fine_tune and method.retrain have it"
        yield from recipe_faults(spec.train, _NOT_BLOCKWISE, f"{self.component}; {after}")

    def compared(self, spec: ExperimentSpec) -> dict[str, SourceSpec]:
        return dict.fromkeys(self.plans(), spec.soft_labels)

    def described(self, names: list[str]) -> str:
        return self.plan if self.plan in names else super().described(names)

    def labelled(self, spec: ExperimentSpec) -> Recipe:
        return self.afterwards or spec.train

    def has_ranks(self, spec: ExperimentSpec) -> bool:
        return True

    def check(self, setup: TrainingSetup) -> None:
        check(self, setup)

    def train(self, training: MemberTraining) -> MemberResult:
        """Train the blocks, then the whole student where `fine_tune` or `retrain` is set."""
        distilled = self.distil(training)
        if self.afterwards is None:
            return distilled
        searched = self.search is not None
        return train_whole(self.afterwards, training, distilled, searched=searched)

    def distil(self, training: MemberTraining) -> MemberResult:
        """Train the blocks in a group of ranks."""
        # A plan needs all of its devices: training waits until a lost rank is replaced.
        machine = Generations(
            wanted=self.devices, least=self.devices, replace=True, standby=self.standby
        )
        module = "kdlab.methods.blockwise.rank"
        group = rank_group(machine, training, module=module, pool=None, hang_s=self.hang_s)
        with training.chaos(None, group.targets):
            result = from_builtins(MemberResult, group.run())
            return replace(result, failovers=group.failovers)


def check(method: Blockwise, setup: TrainingSetup) -> Cutting:
    """Check cuts, devices, memory and profile before a start; return both networks cut.

    Raises:
        BadInput: one of them cannot work.
    """
    spec, data = setup.spec, setup.data
    with torch.random.fork_rng():
        teacher = network_of(spec, data)
        cutting = cutting_of(method.cuts, spec, teacher, data, 0, _CPU, fits=False)
    if method.search is not None and not mixed_blocks(cutting.student):
        raise BadInput(
            f"method.search is set, and {spec.student.component} has nothing to choose from. "
            "Use a supernet as student, such as models/proxyless_supernet."
        )
    if method.profile is not None:
        measured = planning.read_profile(
            Path(method.profile),
            identity_of(spec, cutting, data),
            # Workers may be other machines; their ranks check again.
            any_machine=spec.workers is not None,
        )
        if len(measured.devices) != method.devices:
            raise BadInput(
                f"{method.profile} was measured on {len(measured.devices)} devices, "
                f"method.devices is {method.devices}."
            )
    paths = paths_of(cutting.student)
    blocks = unmeasured(cutting.pairs, cutting.shapes, spec.train, paths)
    profile = Profile(
        types={"any": blocks},
        devices=("any",) * method.devices,
        memory_bytes=_known_memory(method, spec),
    )
    costs = StageCosts(profile, spec.train.batch, lead=method.lead)
    if method.bn == "sync":
        for pair in cutting.pairs:
            check_norms(pair.student)
    for name in method.plans():
        try:
            chosen = programme(name, costs)
        except NoPlan as error:
            raise BadInput(str(error)) from error
        least = smallest_batch(chosen)
        if spec.train.batch < least:
            raise BadInput(
                f"train.batch is {spec.train.batch} and plan: {name} may share a batch by "
                f"{chosen.widest} devices; each needs at least two rows: {least}."
            )
    if not any(variant_blocks(pair.student) for pair in cutting.pairs):
        # Of a library only one variant each is trained
        _check_whole_fits(method, spec.train, costs)
    return cutting


def _check_whole_fits(method: Blockwise, train: Recipe, costs: StageCosts) -> None:
    """Raise BadInput where fine-tuning the whole student needs more memory than a device has."""
    if method.fine_tune is None or method.memory_gb is None:
        return
    recipe, fixed = method.fine_tune, costs.fixed_bytes(0, costs.blocks)
    learnt = sum(block.gradient_bytes for block in costs.profile.types["any"])
    fixed += (copies(recipe) - copies(train)) * learnt  # of its own optimizer
    rows = -(-recipe.batch // recipe.accumulate)  # at a time
    needed = (fixed + rows * costs.row_bytes(0, costs.blocks)) / 1e9
    if needed > method.memory_gb:
        raise BadInput(
            f"method.fine_tune trains the whole student on one device: with its teacher and {rows} "
            f"rows that needs {needed:.3g} GB, and method.memory_gb is {method.memory_gb:g}. Leave "
            "it out, give it a smaller batch or accumulate, or train the whole where it fits."
        )


def _known_memory(method: Blockwise, spec: ExperimentSpec) -> tuple[float, ...] | None:
    """Return the bytes of each device; None where only Dask workers know them."""
    if spec.workers is not None and method.memory_gb is None:
        return None
    device = torch.device(spec.train.chosen_device())
    return (memory_of(method.memory_gb, device, method.devices),) * method.devices
