"""The process of a run; `kdlab/run/process/child.py` starts it.

It prepares what the members need, trains them in turn and writes results. Every finished
member leaves a result.json: a resumed run skips it and continues from the newest checkpoint
of the unfinished member.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from kdlab.changes.change import CONTROL
from kdlab.changes.queue import ChangeQueue
from kdlab.checks import checked
from kdlab.checks.data import DataFacts
from kdlab.codec import to_builtins
from kdlab.config.home import write_json
from kdlab.data.watched import SIDE, watched_rows, write_strip
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.general import Note, Warned
from kdlab.events.images import ImagesChosen
from kdlab.events.log import MemberLog
from kdlab.events.runs import MemberDone, MemberStarted, MethodsCompared, RunDone
from kdlab.events.training import SettingsReverted
from kdlab.experiment.chaos_targets import chaos_while
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining, method_of
from kdlab.experiment.pools import Pools
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import Member, spec_of
from kdlab.report.verdict_picture import write_picture
from kdlab.run.outputs.data_facts import facts_of
from kdlab.run.outputs.documents import (
    StudentCosts,
    announcement,
    draw_overview,
    write_card,
)
from kdlab.run.process.execution import Job
from kdlab.run.process.machine_use import MachineUse
from kdlab.run.process.outcome import RunOutcome, outcome, shares_cores
from kdlab.run.rates import machine_facts
from kdlab.soft_labels.source import TeacherPool
from kdlab.train import checkpoint, kept
from kdlab.train.result import MemberResult


class RunProcess(Job):
    """A run, from its folder to its result; a `pool` that its caller passes in outlives it.

    Without `tracks` it is a trial: its sweep writes to MLflow.
    """

    done, late = RunDone, "MLflow is slow; `kdlab runs --sync` writes the rest"

    def __init__(
        self,
        run: RunFolder,
        stop: Callable[[], bool],
        pool: TeacherPool | None = None,
        *,
        tracks: bool = True,
    ) -> None:
        super().__init__(run, stop)
        self.run, self.spec, self.tracks = run, spec_of(run), tracks
        self._changes = ChangeQueue()  # for the member in training
        self._use = MachineUse(self.log.emit)
        self.setup = TrainingSetup(
            self.spec,
            emit=self.log.emit,
            emit_teacher=MemberLog(self.log, "teacher").emit,
            stop=self._should_stop,
        )
        self.pools = Pools(run, self.setup, self.log.emit, stop, pool)
        self.student_costs = StudentCosts(self.setup)

    def main(self) -> RunOutcome:
        self._announce()
        results = []
        try:
            for member in self.spec.members():
                results.append(self._member(member))
        finally:
            self.pools.close()
        artifacts = method_of(self.spec).summarise(self.spec, self.run)
        if artifacts:
            self.log.emit(MethodsCompared(artifacts=[str(path) for path in artifacts]))
        return outcome(
            self.spec,
            results,
            run=self.run,
            experiment=self.name,
            dataset=self.setup.data.name,
            wall_seconds=self.seconds,
            guessing=self.data_facts.guessing,
            emit=self.log.emit,
        )

    # Members

    def _member(self, member: Member) -> MemberResult:
        folder = self.run.member(member.name)
        before = MemberResult.read(folder)
        if before is not None:
            return before
        if self.stop():
            raise RunStopped("stopped by the user between two trainings")
        result = self._train(member, folder)
        result.write(folder)
        return result

    def _train(self, member: Member, folder: Path) -> MemberResult:
        log, method = MemberLog(self.log, member.name), method_of(self.spec)
        taught = member.source.needs_teacher != "none" or method.needs_teacher
        if taught:  # first, so that it does not count as this member's time
            self.setup.prepare_teacher()
        training = MemberTraining(
            setup=self.setup,
            member=member,
            run=self.run,
            folder=folder,
            emit=log.emit,
            pools=self.pools,
            hosts=self.pools.hosts,
            chaos=partial(chaos_while, self.spec.chaos, log.emit),
        )
        method.prepare(training)
        source, seed = member.source_name, member.seed
        shares = shares_cores(self.spec, source)
        log.emit(MemberStarted(source=source, seed=seed, shares_cores=shares))
        begin = time.monotonic()
        trained = self._trained(training)
        measure = self.setup.teacher_measure if taught else None
        result = replace(
            trained,
            source=source,
            seed=seed,
            shares_cores=shares,
            member=member.name,
            wall_seconds=time.monotonic() - begin,
            teacher_top1=None if measure is None else measure.top1,
            costs=self.student_costs(Path(trained.model_path), log.emit, taught=taught),
        )
        artifacts = write_card(result, self.setup, self.name, self.run.run_id, folder)
        artifacts += method.artifacts(folder)
        log.emit(MemberDone(result=to_builtins(result), artifacts=sorted(set(artifacts))))
        return result

    def _trained(self, training: MemberTraining) -> MemberResult:
        """Train a member to its end, returning to an earlier checkpoint whenever asked to."""
        try:
            while True:
                self._go_back(training)
                try:
                    return method_of(self.spec).train(training)
                except KdlabError:  # raised to go back, or caused by what is undone
                    if self.stop() or self._changes.poll(now=True).back is None:
                        raise
        finally:
            self._changes = ChangeQueue()

    def _go_back(self, training: MemberTraining) -> None:
        """Make the checkpoint that a change asks for the newest; the method resumes there."""
        place = kept.place(training.folder)
        path, since = self.run.path / CONTROL, kept.RevertPoint.read(place).gone
        order = ChangeQueue(path, training.member.name, since).poll(now=True).back
        if order is not None:
            why, since = checkpoint.go_back(place, order), order.time
            text = f"No way back: the checkpoint of step {order.step} is damaged ({why})."
            taken = SettingsReverted(step=order.step, values=order.set)
            training.emit(Warned(message=text) if why else taken)
        self._changes = ChangeQueue(path, training.member.name, since)

    def _should_stop(self) -> bool:
        """Return whether to stop; training loops ask between steps."""
        if self._changes.poll().back is not None:
            raise KdlabError("It continues from an earlier checkpoint.")  # saves nothing
        if self.tracks:  # the trials of a sweep have one machine
            self._use.update()
        return self.stop()

    # Surroundings

    @cached_property
    def data_facts(self) -> DataFacts:
        return facts_of(self.setup.data)

    @property
    def tracking_uri(self) -> str | None:
        return self.spec.tracking.store(self.run.path.parent)

    def _announce(self) -> None:
        begun = announcement(self.setup, self.name, self.run.run_id, self.tracking_uri)
        self.log.emit(begun)
        if text := self.setup.student_begins():
            self.log.emit(Note(message=text))
        spec = self.spec
        tunables = {m.name: spec.method.tunables(spec, m.source) for m in spec.members()}
        write_json(self.run.tunables, to_builtins(tunables))
        data = self.setup.data
        # The trials of a sweep share a machine: each finds it busy with the others.
        about = (self.data_facts, *([machine_facts()] if self.tracks else []))
        for finding in checked(*about):
            self.log.emit(finding)
        if len(rows := watched_rows(data)):
            path = self.run.path / "watched.png"
            write_strip(data, rows, path)
            labels = [data.label_name(int(row)) for row in rows]
            self.log.emit(ImagesChosen(path=str(path), side=SIDE, labels=labels))
        if self.tracks and self.tracking_uri is not None:
            self.tracker.start(self.run.path)

    def end(
        self,
        state: str,
        result: Mapping[str, object] | None = None,
        error: str | None = None,
    ) -> None:
        if state == "finished":
            write_picture(self.run.path, result or {})
            if self.tracks and self.tracking_uri is not None:
                draw_overview(self.run, self.setup, self.log.emit)  # for MLflow
        super().end(state, result, error)

    def resume_hint(self) -> str:
        return (
            f"{self.run.path} keeps the finished trainings and the last checkpoint of the "
            "unfinished one. Make room, then\n"
            f"    {self.run.resume_command}"
        )
