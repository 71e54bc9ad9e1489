"""A run from inside; `kdlab/run/child.py` is its entry.

Prepares what the members need, trains them one after the other, writes results. Every
finished member leaves a result.json, so a resumed run skips it and goes on with the
newest checkpoint of the one that was under way.
"""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
import yaml

from kdlab.cluster.chaos import Unrest
from kdlab.cluster.group import StudentGroup
from kdlab.cluster.hosted_ranks import Hosts
from kdlab.cluster.local_pool import RunningLocalPool
from kdlab.cluster.pool import Pool
from kdlab.cluster.served import Served
from kdlab.config.check import construct
from kdlab.config.home import locked, write_json
from kdlab.config.load import from_dict, spec_hash
from kdlab.data.images import ImageData
from kdlab.errors import RunStopped
from kdlab.models.exported import load_exported
from kdlab.models.model import parameters, read_card
from kdlab.report.local_curves import local_curves
from kdlab.report.machine import git_commit, machine, versions
from kdlab.report.model_card import model_card
from kdlab.run import blockwise, ensemble
from kdlab.run.carry_out import carry_out
from kdlab.run.crew import Processes
from kdlab.run.ensemble import Contest
from kdlab.run.folder import RunFolder
from kdlab.run.handle import Run
from kdlab.run.ingredients import Ingredients
from kdlab.run.outcome import outcome
from kdlab.run.pools import Pools
from kdlab.run.rank_orders import Around, block_group, student_group
from kdlab.run.served_models import ServedModels
from kdlab.run.shipping import costs_beside
from kdlab.run.side_by_side import overview
from kdlab.run.spec import ExperimentSpec, Member
from kdlab.run.tracker import Tracker
from kdlab.run.unrest import OwnTargets
from kdlab.soft_labels.source import SourceContext
from kdlab.train.aggregation.all_reduce import AllReduce
from kdlab.train.blockwise import Blockwise
from kdlab.train.ensemble import Ensemble
from kdlab.train.events import EventLog, MemberLog
from kdlab.train.local.crew import Crew, InProcess
from kdlab.train.local.direction import Direction
from kdlab.train.steering import CONTROL, Steering
from kdlab.train.student import StudentLoop
from kdlab.train.teacher import PreparedTeachers


class Group(Protocol):
    """The ranks of one student, whoever starts them."""

    failovers: list[float]  # seconds each

    def run(self) -> dict[str, Any]: ...


class RunProcess:
    """A run, from its folder to its result.

    Args:
        run: its folder.
        stop: whether the user asked to stop.
        pool: serves the teacher already and outlives this run; None starts what the spec says.
    """

    def __init__(
        self, run: RunFolder, stop: Callable[[], bool], pool: Pool | None = None
    ) -> None:
        self.run, self.stop = run, stop
        self.log = EventLog(run.events)
        tree = from_dict(yaml.safe_load((run.path / "spec.yaml").read_text()), run.run_id)
        self.spec = construct(ExperimentSpec, tree)
        self.hash = spec_hash(self.spec.to_dict())
        self.name = str(run.experiment()["experiment"])
        self.begin = time.time()
        self.seconds_before = float(run.raw_status().get("seconds") or 0)  # before a resume
        self.ingredients = Ingredients(
            self.spec,
            self.hash,
            emit=self.log.emit,
            emit_teacher=MemberLog(self.log, "teacher").emit,
            stop=stop,
        )
        self.pools = Pools(run, self.ingredients, self.log.emit, stop, pool)
        late = "MLflow is slow; `kdlab runs --sync` writes the rest"
        self.costs: dict[str, dict[str, dict[str, float]]] = {}  # by kind of student
        self.tracker = Tracker(self.log.emit, late)

    @cached_property
    def hosts(self) -> Hosts | None:
        """Where ranks are started; None is this machine."""
        workers = self.spec.workers
        return None if workers is None else Hosts(workers.address, workers.certificates())

    @property
    def data(self) -> ImageData:
        return self.ingredients.data

    @property
    def teacher(self) -> PreparedTeachers:
        return self.ingredients.teacher

    def main(self) -> dict[str, Any]:
        self._announce()
        results = []
        try:
            for member in self.spec.members():
                results.append(self._member(member))
        finally:
            self.pools.close()
            if "hosts" in self.__dict__ and self.hosts is not None:
                self.hosts.close()
        if isinstance(self.spec.method, Ensemble):
            made = ensemble.comparison(self.spec, self.run.member, self.run.path)
            if made:
                self.log.emit("methods_compared", artifacts=[str(path) for path in made])
        known = [r["teacher_top1"] for r in results if r["teacher_top1"] is not None]
        return outcome(
            self.spec,
            results,
            run_id=self.run.run_id,
            experiment=self.name,
            dataset=self.data.name,
            teacher_top1=known[0] if known else None,
            wall_seconds=self.seconds_before + time.time() - self.begin,
            tracking_uri=self.tracking_uri,
            run_dir=str(self.run.path),
        )

    # Members

    def _member(self, member: Member) -> dict[str, Any]:
        folder = self.run.member(member.name)
        kept = folder / "result.json"
        if kept.is_file():
            result: dict[str, Any] = json.loads(kept.read_text())
            return result
        if self.stop():
            raise RunStopped("stopped by the user between two trainings")
        result = self._train(member, folder)
        write_json(kept, result)  # last: its presence means finished
        return result

    def _train(self, member: Member, folder: Path) -> dict[str, Any]:
        log = MemberLog(self.log, member.name)
        needs, method = member.source.needs_teacher, self.spec.method
        taught = needs != "none" or method.needs_teacher
        if taught:
            _ = (
                self.teacher
            )  # trained first, so that it does not count as this member's time
        pool = self.pools.whole() if needs == "served" else None
        of_ranks = pool
        if isinstance(method, Blockwise):
            serves = method.serves(member.source_name)
            of_ranks = self.pools.prefix() if serves else None
        log.emit("member_started", source=member.source_name, seed=member.seed)
        begin = time.time()
        if isinstance(method, Ensemble):
            result = self._train_locals(member, folder, log, pool)
        else:
            group = self.group(member, folder, log, of_ranks)
            with self._unrest(of_ranks, group, log):
                if group is not None:
                    result = group.run() | {"failovers": group.failovers}
                else:
                    result = self._train_alone(member, folder, log, pool)
        if isinstance(method, Blockwise) and method.afterwards is not None:
            result = self._train_whole(method, member, folder, log, pool, result)
        result |= {
            "source": member.source_name,
            "seed": member.seed,
            "member": member.name,
            "wall_seconds": time.time() - begin,
            "teacher_top1": self.ingredients.teacher_top1 if taught else None,
            "costs": self._costs(Path(result["model_path"]), log, taught=taught),
        }
        card = folder / "model_card.md"
        card.write_text(self._card(result), encoding="utf-8")
        artifacts = [result["model_path"], result["best_path"], str(card)]
        artifacts += [str(Path(p).with_suffix(".json")) for p in artifacts[:2]]
        artifacts += blockwise.artifacts(folder) + ensemble.artifacts(folder)
        log.emit("member_done", result=result, artifacts=sorted(set(artifacts)))
        return result

    def _train_alone(
        self, member: Member, folder: Path, log: MemberLog, pool: Pool | None
    ) -> dict[str, Any]:
        return self._to_the_end(
            self.ingredients.loop(
                member, folder, log.emit, steering=self._steering(member)
            ),
            member,
            folder,
            log,
            pool,
        )

    def _steering(self, member: Member) -> Steering:
        return Steering(self.run.path / CONTROL, member.name, self.run.since)

    def _train_locals(
        self, member: Member, folder: Path, log: MemberLog, pool: Pool | None
    ) -> dict[str, Any]:
        """Several local models, in processes of their own or one after the other here."""
        contest = Contest(self.ingredients, member)
        unseen = contest.unseen_classes()
        if unseen:
            each = ", ".join(f"worker {k} {n}" for k, n in unseen.items())
            log.emit(
                "warning",
                message=f"Of {len(self.ingredients.data.classes)} classes some are not in the "
                f"local data: {each}. Those models cannot know them by themselves; their "
                "ensemble can. Raise method.shards.concentration for more even shares.",
            )
        crew: Crew
        if contest.method.processes:
            around = self._around(member, folder, log)
            crew = Processes(around, pool, contest.method.hang_s)
        else:
            crew = InProcess(
                lambda number: contest.worker(
                    number, folder, log.emit, self._steering(member)
                ),
                lambda worker: contest.source(worker, self.run.run_id, pool),
            )
        group = crew if isinstance(crew, Processes) else None
        serve, relabels = None, contest.relabels
        with ExitStack() as stack:
            if relabels is not None:
                serve = ServedModels(contest, self.run, relabels, log.emit, self.stop)
                stack.callback(serve.close)
            targets = stack.enter_context(self._unrest(pool, group, log))
            if serve is not None:
                serve.targets = targets
            training = contest.training(folder, log.emit, serve)
            outcome = Direction(training, crew).run()
        result = contest.result(outcome, folder)
        local_curves(outcome.looks, folder, member.name)
        return result

    def _around(self, member: Member, folder: Path, log: MemberLog) -> Around:
        return Around(
            run=self.run,
            member=member.name,
            folder=folder,
            hosts=self.hosts,
            report=log.emit,
            stop=self.stop,
        )

    def _train_whole(
        self,
        method: Blockwise,
        member: Member,
        folder: Path,
        log: MemberLog,
        pool: Pool | None,
        distilled: dict[str, Any],
    ) -> dict[str, Any]:
        """After the blocks: the whole student, in this process."""
        assert method.afterwards is not None
        log.emit(
            "whole_student", epochs=method.afterwards.epochs, distilled=distilled["last"]
        )
        own = folder / "whole"
        loop = blockwise.whole_student(
            method,
            self.ingredients,
            member,
            own,
            log.emit,
            distilled,
            self._steering(member),
        )
        result = self._to_the_end(loop, member, own, log, pool)
        return blockwise.together(result, distilled)

    def _to_the_end(
        self,
        loop: StudentLoop,
        member: Member,
        folder: Path,
        log: MemberLog,
        pool: Pool | None,
    ) -> dict[str, Any]:
        loop.resume()
        source = member.source.build(
            SourceContext(
                samples=loop.job.samples,
                student=f"{self.run.run_id}/{member.name}",
                folder=folder,
                load_teacher=self.ingredients.load_teacher,
                pool=pool,
                report=log.emit,
                stop=self.stop,
                student_rate=loop.measure_rate,
                start=loop.start(),
            )
        )
        with closing(source):
            return asdict(loop.run(source)) | {"parameters": parameters(loop.model)}

    def group(
        self, member: Member, folder: Path, log: MemberLog, pool: Pool | None
    ) -> "Group | None":
        """Several ranks, each a process of its own; None for one student in this one."""
        method, aggregation = self.spec.method, self.spec.aggregation
        around = self._around(member, folder, log)
        if isinstance(method, Blockwise):
            return block_group(method, around, pool)
        if not isinstance(aggregation, AllReduce):
            return None
        return student_group(aggregation, around, pool=pool, spec_hash=self.hash)

    @contextmanager
    def _unrest(
        self, pool: Pool | None, group: "Group | Processes | None", log: MemberLog
    ) -> Iterator[OwnTargets | None]:
        """The trouble that `chaos:` asks for, while a member trains."""
        if self.spec.chaos is None:
            yield None
            return
        local = pool if isinstance(pool, RunningLocalPool) else None
        own = group if isinstance(group, StudentGroup | Processes) else None
        targets = OwnTargets(local, own)
        unrest = Unrest(
            self.spec.chaos, targets, log.emit, None if pool is None else pool.tls
        )
        try:
            yield targets
        finally:
            unrest.stop()

    def _costs(
        self, student: Path, log: MemberLog, *, taught: bool
    ) -> dict[str, dict[str, float]]:
        """Measured once for all members whose student is of one kind."""
        try:
            kind = json.dumps([read_card(student)["model"], taught])
            if kind not in self.costs:
                dataset = {"classes": len(self.data.classes), "shape": self.data.shape}
                teacher = self.teacher if taught else None
                # The next member's chances stay as they are; no GPU is touched.
                with torch.random.fork_rng(devices=[]):
                    self.costs[kind] = costs_beside(
                        load_exported(student), teacher, dataset
                    )
            return self.costs[kind]
        except Exception as error:  # foreign networks: the training is not lost for it
            log.emit("warning", message=f"What the student costs is not known: {error}")
            return {}

    def _card(self, result: dict[str, Any]) -> str:
        return model_card(
            result,
            experiment=self.name,
            run_id=self.run.run_id,
            dataset=self.data.name,
            spec=self.spec.to_dict(),
            spec_hash=self.hash,
            teacher_top1=result["teacher_top1"],
        )

    # Surroundings

    @property
    def tracking_uri(self) -> str | None:
        tracking = self.spec.tracking
        if not tracking.enabled:
            return None
        return tracking.uri or f"sqlite:///{self.run.path.parent / 'mlflow.db'}"

    def _announce(self) -> None:
        spec, data = self.spec, self.data
        self.log.emit(
            "run_started",
            run_id=self.run.run_id,
            experiment=self.name,
            group=spec.tracking.experiment or self.name,
            tracking_uri=self.tracking_uri,
            spec=spec.to_dict(),
            spec_hash=self.hash,
            members=[m.name for m in spec.members()],
            machine=machine(),
            versions=versions(),
            git=git_commit(),
            thresholds=_thresholds(spec),
            dataset={
                "name": data.name,
                "digest": data.digest,
                "classes": len(data.classes),
                "shape": list(data.shape),
                "train": len(data.train),
                "validation": len(data.validation),
                "test": len(data.test),
            },
        )
        if self.tracking_uri is not None:
            self.track()

    def track(self) -> None:
        """Have MLflow follow the events."""
        self.tracker.start(
            "kdlab.tracking.follow", {"run": str(self.run.path)}, self.run.path
        )

    def draw(self) -> None:
        """Curves and a table of all that was trained, for MLflow."""
        try:
            files = overview(Run(self.run))
            for name, text in files.items():
                (self.run.path / name).write_text(text, encoding="utf-8")
        except Exception as error:  # a picture never fails a run that has its result
            traceback.print_exc()
            self.log.emit("warning", message=f"No overview was drawn: {error!r}")
            return
        self.log.emit("overview_made", files=[str(self.run.path / name) for name in files])

    def end(self, state: str, **facts: Any) -> None:
        """The last event; then MLflow gets what it has not got yet."""
        if state == "finished":
            self.draw()
        self.log.emit("run_done", state=state, **facts)
        self.tracker.finish()

    def go_on(self) -> str:
        return (
            f"All that was saved is in {self.run.path}: trainings that had ended, and the "
            "last checkpoint of the one under way. Make room, then\n"
            f"    kdlab resume {self.run.run_id}"
        )


def main(path: str, stop: Callable[[], bool]) -> int:
    """Run to the end; the exit code. The status file says the same."""
    run = RunFolder(Path(path))

    def busy() -> None:
        raise SystemExit(f"run {run.run_id} is going already in another process")

    with locked(run.path / "lock", busy):
        return carry_out(run, lambda: RunProcess(run, stop))


def _thresholds(spec: ExperimentSpec) -> list[float | None]:
    """Lower and upper, in the spec's unit; those that nobody chose as they will be."""
    source = spec.soft_labels
    if not isinstance(source, Served):
        return [None, None]
    return list(source.bounds(spec.train.batch))
