"""One device of a pipeline, as a process: `python -m kdlab.methods.blockwise.rank`."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

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
from kdlab.models.proxyless import likeliest_network
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


class _Generation(NamedTuple):
    order: GenerationOrder
    cutting: Cutting
    device: torch.device


class BlockRank(RankProcess[GenerationOrder]):
    """A rank that trains the blocks of its stages."""

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
        with self.process_group(order, device):
            now = _Generation(order, cutting, device)
            return self._train(now, self._programme(now))

    def _train(self, now: _Generation, chosen: ExecutionPlan) -> MemberResult | None:
        order, cutting, device = now
        number, rank = order.generation, order.rank
        self.beat(number, 0)
        report = self.report(rank)
        folder = self.folder / "checkpoints"
        loaded = checkpoint.load_newest(folder, self.hash, BlockwiseFacts)
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
        loop.restore(loaded)
        self.beat(number, loop.position.step)
        loop.train()
        if rank:
            return None
        self._compare(chosen, loop)
        architecture = None
        if self.method.search is not None:
            small = bool(getattr(self.spec.student, "small", False))
            network = likeliest_network(cutting.student, small=small)
            architecture = write_architecture(network, self.folder)
            self.log.emit(ArchitectureFound(choices=list(network.choices)))
        return replace(loop.finish(), architecture=architecture)

    # The plan

    def _programme(self, now: _Generation) -> ExecutionPlan:
        """Return this member's plan: the stored one, or one for a profile of all ranks."""
        order, cutting, device = now
        costs = None
        kinds = from_all(planning.kind_of(device), str)
        # Of an earlier generation or session, for devices in this order
        path = self.folder / planning.PLAN
        stored = recall_as(planning.KeptPlan, path, "The plan is made anew.")
        if from_first(stored is None or list(stored.devices) != kinds, bool):
            memory_bytes = memory_of(self.method.memory_gb, device, order.local_world)
            # Each device reports its own memory, or what it is allowed.
            memory = tuple(from_all(memory_bytes, float))
            profile = self._profile(now, memory)
            profile = planning.in_order_of(kinds, profile) or profile
            costs = StageCosts(
                replace(profile, memory_bytes=memory),
                self.spec.train.batch,
                sync_norms=self.method.bn == "sync",
                lead=self.method.lead,
            )
        answer: tuple[list[ExecutionPlan], str] = [], ""
        if order.rank == 0:  # plans for all: free memory may differ between ranks
            answer = self._planned(costs, stored)
        plans, why = from_first(answer, tuple[list[ExecutionPlan], str])
        if not plans:
            raise BadInput(why)
        chosen = self._better(plans, now) if len(plans) > 1 else plans[0]
        if order.rank == 0 and costs is not None:
            self._report_plan(chosen, costs, cutting)
        return chosen

    def _planned(
        self, costs: StageCosts | None, stored: planning.KeptPlan | None
    ) -> tuple[list[ExecutionPlan], str]:
        """Return the plan and another to time beside it; or no plan and why."""
        if costs is None:
            assert stored is not None
            return [stored.programme], ""
        decoupled = self.method.decoupled
        try:
            plans = [programme(self.plan, costs, decoupled=decoupled)]
        except NoPlan as error:
            return [], str(error)
        if self.plan == "ahd" and self.method.replan:
            with suppress(NoPlan):
                relayed = programme("tr", costs, decoupled=decoupled)
                if relayed.plans != plans[0].plans:
                    plans.append(replace(relayed, name="ahd"))
        return plans, ""

    def _better(self, plans: list[ExecutionPlan], now: _Generation) -> ExecutionPlan:
        """Return the first of two plans, unless some steps of the second take clearly less."""
        loader = self._loader(now)
        full = sum(len(ids) == self.spec.train.batch for ids in loader.ids)  # batches
        if not full:
            loader.close()
            return plans[0]
        copies = self._copies(now, lambda step, a, z: loader(step % full, a, z))
        first, second = (step_s(plan.plans[0], copies) for plan in plans)
        loader.close()
        chosen = plans[second < first * (1 - _GAIN)]
        why = f"{1e3 * first:.1f} ms a step for some steps, {1e3 * second:.1f} ms by tr"
        return replace(chosen, why=f"{chosen.why}; {why}")

    def _copies(self, now: _Generation, load: LoadViews) -> OnCopies:
        recipe, alive = self.spec.train, partial(self.beat, now.order.generation, 0)
        return OnCopies(now.order.rank, now.cutting, recipe, self.method.bn, load, alive)

    def _loader(self, now: _Generation) -> Loader:
        """Return a loader at the first batch of the first epoch."""
        samples = self.setup.samples(self.member)
        loader = Loader(samples, now.cutting.student, now.device)
        loader.begin(0, 0)
        return loader

    def _report_plan(
        self, chosen: ExecutionPlan, costs: StageCosts, cutting: Cutting
    ) -> None:
        """Store the plan and emit it."""
        table = plan_table(chosen, costs, cutting.student_cuts)
        ideal = _ideal_by_part(costs)
        stored = planning.KeptPlan(chosen, table, ideal, tuple(costs.profile.devices))
        write_json(self.folder / planning.PLAN, to_builtins(stored))
        self.log.emit(PlanChosen(programme=to_builtins(chosen), table=table, ideal_s=ideal))
        if cutting.same:
            numbers = ", ".join(map(str, cutting.same))
            message = f"blocks equal to the teacher's are not trained: {numbers}"
            self.log.emit(Note(message=message))

    @property
    def plan(self) -> PlanName:
        return next(p for p in self.method.plans() if p == self.member.source_name)

    def _profile(self, now: _Generation, memory: tuple[float, ...]) -> Profile:
        """Return the named profile, that of this run, or a new one of all ranks."""
        identity = identity_of(self.spec, now.cutting, self.setup.data)
        identity = planning.joint_identity(identity, from_all(identity.machine, str))
        answer: tuple[Profile | None, str] = None, ""
        if now.order.rank == 0:  # reads for all, since their machines may differ
            answer = self._stored_profile(identity)
        profile, why = from_first(answer, tuple[Profile | None, str])
        if why:
            raise BadInput(why)
        if profile is not None:
            return profile
        profile = self._measured(now, memory)
        if now.order.rank == 0:
            planning.write_profile(profile, identity, self.run.path / "profile.json")
        return profile

    def _stored_profile(self, identity: planning.Identity) -> tuple[Profile | None, str]:
        """Return a profile that is there already, or why it cannot be used."""
        path, named = self.run.path / "profile.json", self.method.profile
        try:
            if named is not None:
                return planning.read_profile(Path(named), identity), ""
            return (planning.read_profile(path, identity) if path.is_file() else None), ""
        except BadInput as error:
            if named is not None:
                return None, str(error)
            self.log.emit(
                Note(message="profile.json is of others: blocks are measured again")
            )
            return None, ""

    def _measured(self, now: _Generation, memory: tuple[float, ...]) -> Profile:
        if now.order.rank == 0:
            self.log.emit(Note(message="measuring the blocks on all devices"))
        loader = self._loader(now)
        profile = profiled_together(
            self._copies(now, loader),
            [len(ids) for ids in loader.ids],
            steps=self.method.profile_steps,
            max_s=self.method.profile_s,
            memory=memory,
            shares=bool(set(self.method.plans()) & {"ahd", "ir", "dp"}),
        )
        loader.close()
        return profile

    # Afterwards

    def _compare(self, chosen: ExecutionPlan, loop: BlockwiseLoop) -> None:
        """Report the predicted and the measured time of a step."""
        if not loop.step_s:
            return
        measured = median(loop.step_s)
        ratio = chosen.predicted_s / measured
        event = PlanMeasured(
            predicted_s=chosen.predicted_s,
            measured_s=measured,
            predicted_over_measured=ratio,
        )
        self.log.emit(event)
        if abs(ratio - 1) > _OFF:
            message = (
                f"A step took {1e3 * measured:.1f} ms, {1e3 * chosen.predicted_s:.1f} ms were "
                f"predicted ({ratio:.2f} of it): the plan may not be the best one. Usual causes: "
                "other work on these devices, or an old profile. A new run without "
                "method.profile measures the blocks again."
            )
            self.log.emit(Warned(message=message))

    def _write_trace(self, spans: list[Span]) -> None:
        """Emit the spans after every epoch; draw them after the first."""
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


def _ideal_by_part(costs: StageCosts) -> dict[str, float]:
    """Return a device's mean seconds of each part where all work alike long (Fig. 2's ideal)."""
    load_s, parts_s = costs.profile.load_s, list[list[float]]()
    for blocks in map(costs.profile.types.__getitem__, costs.profile.devices):
        sides = zip(*((b.teacher_s, b.student_s) for b in blocks), strict=True)
        parts_s.append([load_s, *(sum(at(s, costs.batch) for s in side) for side in sides)])
    seconds = torch.tensor(parts_s, dtype=torch.float64)
    rates = 1 / seconds.sum(1, keepdim=True).clamp_min(1e-12)  # of devices, which add up
    ideal = (seconds * rates).mean(0) / rates.sum()
    return dict(zip(("load", "teacher", "student"), ideal.tolist(), strict=True))


if __name__ == "__main__":
    main(BlockRank)
