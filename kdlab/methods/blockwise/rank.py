"""One device of a pipeline, as a process: `python -m kdlab.methods.blockwise.rank`."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from kdlab.codec import to_builtins
from kdlab.config.home import read_as, recall_as, write_json
from kdlab.data.watched import watched_rows
from kdlab.errors import BadInput
from kdlab.events.blockwise import (
    ArchitectureFound,
    PlanChosen,
    PlanMeasured,
    TraceRecorded,
)
from kdlab.events.general import Note, Warned
from kdlab.experiment.rank_process import RankProcess, main
from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.cutting import Cutting
from kdlab.methods.blockwise.job import BlockwiseFacts, BlockwiseJob
from kdlab.methods.blockwise.loader import Loader
from kdlab.methods.blockwise.loop import BlockwiseLoop
from kdlab.methods.blockwise.method import Blockwise
from kdlab.methods.blockwise.on_copies import LoadViews, OnCopies, profiled_together, step_s
from kdlab.methods.blockwise.setup import (
    cutting_of,
    identity_of,
    memory_of,
    smallest_batch,
    write_architecture,
)
from kdlab.models.proxyless import derived
from kdlab.papers.pipe_bd.block_cost import Profile, StageCosts, at
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan, NoPlan, PlanName, programme
from kdlab.papers.pipe_bd.relay import Span
from kdlab.report import trace
from kdlab.report.plan_table import plan_table
from kdlab.report.timeline import timeline
from kdlab.supervision.process_groups import from_all, from_first
from kdlab.supervision.rank_messages import GenerationOrder
from kdlab.train import checkpoint
from kdlab.train.kept import steps
from kdlab.train.result import MemberResult

_GAIN = 0.05  # tr must be better by more than steps differ
_OFF = 0.2  # measured step time this far from the predicted one is worth a warning


class BlockRank(RankProcess[GenerationOrder]):
    """A rank that trains the blocks of its stage."""

    takes = GenerationOrder

    @property
    def method(self) -> Blockwise:
        method = self.spec.method
        assert isinstance(method, Blockwise)
        return method

    def generation(self, order: GenerationOrder) -> MemberResult | None:
        self.saving = False
        self.beat(order.generation, 0)
        device = self.device(order.local_rank)
        if self.spec.train.threads is not None:
            torch.set_num_threads(self.spec.train.threads)
        data = self.setup.data
        teacher = self.setup.teacher.members[0].build(len(data.classes), data.shape[0])
        # A checkpoint brings the student's weights.
        fits = not steps(self.folder / "checkpoints")
        cutting = cutting_of(
            self.method.cuts, self.spec, teacher, data, self.member.seed, device, fits=fits
        )
        with self.meeting(order, device):
            chosen = self._programme(order, cutting, device)
            return self._train(order, cutting, device, chosen)

    def _train(
        self,
        order: GenerationOrder,
        cutting: Cutting,
        device: torch.device,
        chosen: ExecutionPlan,
    ) -> MemberResult | None:
        number, rank = order.generation, order.rank
        self.beat(number, 0)
        report = self.report(rank)
        found = checkpoint.load_newest(
            self.folder / "checkpoints", self.hash, BlockwiseFacts
        )
        samples = self.setup.samples(self.member, smallest=smallest_batch(chosen))
        loop = BlockwiseLoop(
            BlockwiseJob(
                recipe=self.spec.train,
                cutting=cutting,
                samples=samples,
                watched=watched_rows(samples.data),
                programme=chosen,
                norm=self.method.bn,
                recalibrate=self.method.shown_whole,
                seed=self.member.seed,
                folder=self.folder,
                spec_hash=self.hash,
                fence=order.fence,
                rank=rank,
                device=device,
                emit=report,
                stop=self.stops,
                leave=lambda: self.saving or self.leaving,
                pulse=lambda step: self.beat(number, step),
                changes=self.changes,
                search=self.method.search,
                on_trace=self._write_trace,
            )
        )
        loop.go_to(found)
        self.beat(number, loop.position.step)
        loop.train()
        if rank:
            return None
        self._compare(chosen, loop)
        architecture = None
        if self.method.search is not None:
            small = bool(getattr(self.spec.student, "small", False))
            network = derived(cutting.student, small=small)
            architecture = write_architecture(network, self.folder)
            self.log.emit(ArchitectureFound(choices=list(network.choices)))
        return replace(loop.finish(), architecture=architecture)

    # The plan

    def _programme(
        self, order: GenerationOrder, cutting: Cutting, device: torch.device
    ) -> ExecutionPlan:
        """The plan of this member: kept, or made from a profile that all measure together."""
        costs = None
        kinds = from_all(planning.kind_of(device), str)
        # Of a generation or a session before, for devices in this order?
        kept = recall_as(
            planning.KeptPlan, self.folder / planning.PLAN, "The plan is made anew."
        )
        if from_first(kept is None or list(kept.devices) != kinds, bool):
            own = memory_of(self.method.memory_gb, device, order.local_world)
            # What each device says it has, or what all are allowed.
            memory = tuple(from_all(own, float))
            profile = self._profile(order, cutting, device, memory)
            profile = planning.in_order_of(kinds, profile) or profile
            costs = StageCosts(
                replace(profile, memory_bytes=memory),
                self.spec.train.batch,
                sync_norms=self.method.bn == "sync",
                lead=self.method.lead,
            )
        own_plans: tuple[list[ExecutionPlan], str] = [], ""
        if order.rank == 0:  # one plans for all: another's memory may look different
            own_plans = self._planned(costs, kept)
        plans, why = from_first(own_plans, tuple[list[ExecutionPlan], str])
        if not plans:
            raise BadInput(why)
        chosen = plans[0]
        if len(plans) > 1:
            chosen = self._better(plans, order, cutting, device)
        if order.rank == 0 and costs is not None:
            self._tell(chosen, costs, cutting)
        return chosen

    def _planned(
        self, costs: StageCosts | None, kept: planning.KeptPlan | None
    ) -> tuple[list[ExecutionPlan], str]:
        """The plan, and what it is to be measured beside; or why there is none."""
        if costs is None:
            assert kept is not None
            return [kept.programme], ""
        decoupled = self.method.decoupled
        try:
            plans = [programme(self.plan, costs, decoupled=decoupled)]
        except NoPlan as error:
            return [], str(error)
        if self.plan == "ahd" and self.method.replan:
            with suppress(NoPlan):
                other = programme("tr", costs, decoupled=decoupled)
                if other.plans != plans[0].plans:
                    plans.append(replace(other, name="ahd"))
        return plans, ""

    def _better(
        self,
        plans: list[ExecutionPlan],
        order: GenerationOrder,
        cutting: Cutting,
        device: torch.device,
    ) -> ExecutionPlan:
        """The first of two, unless some steps of the second take clearly less."""
        loader = self._loader(cutting, device)
        whole = sum(len(ids) == self.spec.train.batch for ids in loader.ids)
        if not whole:
            loader.close()
            return plans[0]
        copies = self._copies(order, cutting, lambda s, a, z: loader(s % whole, a, z))
        first, second = (step_s(made.plans[0], copies) for made in plans)
        loader.close()
        chosen = plans[second < first * (1 - _GAIN)]
        why = f"{1e3 * first:.1f} ms a step for some steps, {1e3 * second:.1f} ms by tr"
        return replace(chosen, why=f"{chosen.why}; {why}")

    def _copies(
        self, order: GenerationOrder, cutting: Cutting, load: LoadViews
    ) -> OnCopies:
        alive = partial(self.beat, order.generation, 0)
        return OnCopies(order.rank, cutting, self.spec.train, self.method.bn, load, alive)

    def _loader(self, cutting: Cutting, device: torch.device) -> Loader:
        """It begins with the first batch of the first epoch."""
        loader = Loader(self.setup.samples(self.member), cutting.student, device)
        loader.begin(0, 0)
        return loader

    def _tell(self, chosen: ExecutionPlan, costs: StageCosts, cutting: Cutting) -> None:
        """Keep the plan, and say it."""
        table = plan_table(chosen, costs, cutting.student_cuts)
        ideal = {part: seconds / costs.devices for part, seconds in _alone(costs)}
        made = planning.KeptPlan(chosen, table, ideal, tuple(costs.profile.devices))
        write_json(self.folder / planning.PLAN, to_builtins(made))
        self.log.emit(PlanChosen(programme=to_builtins(chosen), table=table, ideal_s=ideal))
        if cutting.same:
            own = ", ".join(map(str, cutting.same))
            said = f"blocks that are wholly the teacher's stay so and cost nothing: {own}"
            self.log.emit(Note(message=said))

    @property
    def plan(self) -> PlanName:
        return next(p for p in self.method.plans() if p == self.member.source_name)

    def _profile(
        self,
        order: GenerationOrder,
        cutting: Cutting,
        device: torch.device,
        memory: tuple[float, ...],
    ) -> Profile:
        """The given one, that of this run, or what all ranks measure now."""
        of = identity_of(self.spec, cutting, self.setup.data)
        of = planning.of_machines(of, from_all(of.machine, str))
        own: tuple[Profile | None, str] = None, ""
        if order.rank == 0:  # it reads for all: their machines may be unlike
            own = self._kept_profile(of)
        kept, why = from_first(own, tuple[Profile | None, str])
        if why:
            raise BadInput(why)
        if kept is not None:
            return kept
        profile = self._measured(order, cutting, device, memory)
        if order.rank == 0:
            planning.write_profile(profile, of, self.run.path / "profile.json")
        return profile

    def _kept_profile(self, of: planning.Identity) -> tuple[Profile | None, str]:
        """One that need not be measured, or why it cannot be taken."""
        own, given = self.run.path / "profile.json", self.method.profile
        try:
            if given is not None:
                return planning.read_profile(Path(given), of), ""
            return (planning.read_profile(own, of) if own.is_file() else None), ""
        except BadInput as error:
            return None, str(error)

    def _measured(
        self,
        order: GenerationOrder,
        cutting: Cutting,
        device: torch.device,
        memory: tuple[float, ...],
    ) -> Profile:
        if order.rank == 0:
            self.log.emit(Note(message="measuring the blocks on all devices"))
        loader = self._loader(cutting, device)
        profile = profiled_together(
            self._copies(order, cutting, loader),
            [len(ids) for ids in loader.ids],
            steps=self.method.profile_steps,
            max_s=self.method.profile_s,
            memory=memory,
            shares=bool(set(self.method.plans()) & {"ahd", "ir", "dp"}),
        )
        loader.close()
        return profile

    # What became of it

    def _compare(self, chosen: ExecutionPlan, loop: BlockwiseLoop) -> None:
        """The prediction with what was measured."""
        if not loop.step_s:
            return
        measured = median(loop.step_s)
        ratio = chosen.predicted_s / measured
        self.log.emit(
            PlanMeasured(
                predicted_s=chosen.predicted_s,
                measured_s=measured,
                predicted_over_measured=ratio,
            )
        )
        if abs(ratio - 1) > _OFF:
            self.log.emit(
                Warned(
                    message=f"A step took {1e3 * measured:.1f} ms, {1e3 * chosen.predicted_s:.1f} "
                    f"ms were predicted ({ratio:.2f} of it): the plan may not be the best one. "
                    "Other work on these devices, or a profile measured at another time, are "
                    "the usual causes; delete profile.json to measure again."
                )
            )

    def _write_trace(self, spans: list[Span]) -> None:
        """For whoever watches after every epoch, as pictures after the first."""
        origin = min((span.begin for span in spans), default=0.0)
        rows = [
            (s.device, s.part, s.step, round(s.begin - origin, 5), round(s.end - origin, 5))
            for s in spans
        ]
        self.log.emit(TraceRecorded(spans=[list(row) for row in rows]))
        if (self.folder / "trace.json").exists():
            return
        trace.write_chrome_trace(spans, self.folder / "trace.json")
        title = f"{self.member.name}: the last steps of the first epoch"
        (self.folder / "gantt.svg").write_text(timeline(rows), encoding="utf-8")
        ideal = read_as(planning.KeptPlan, self.folder / planning.PLAN).ideal_s
        trace.breakdown(spans, ideal, self.folder / "breakdown.png", title)


def _alone(costs: StageCosts) -> Iterator[tuple[str, float]]:
    """Each part of the whole work on one device (Fig. 2's ideal times their number)."""
    blocks = costs.profile.types[costs.profile.devices[0]]
    yield "load", costs.profile.load_s
    yield "teacher", sum(at(b.teacher_s, costs.batch) for b in blocks)
    yield "student", sum(at(b.student_s, costs.batch) for b in blocks)


if __name__ == "__main__":
    main(BlockRank)
