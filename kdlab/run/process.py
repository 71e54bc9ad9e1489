"""A run from inside; `kdlab/run/child.py` is its entry.

Prepares what the members need, trains them one after the other, writes results. Every
finished member leaves a result.json, so a resumed run skips it and goes on with the
newest checkpoint of the one that was under way.
"""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import yaml

from kdlab.cluster.chaos import Unrest
from kdlab.cluster.hosted_ranks import Hosts
from kdlab.cluster.pool import Pool
from kdlab.config.check import construct
from kdlab.config.home import locked, write_json
from kdlab.config.load import from_dict, spec_hash
from kdlab.data.images import ImageData
from kdlab.errors import RunStopped
from kdlab.experiment.chaos_targets import OwnTargets
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining, Ranks
from kdlab.experiment.pools import Pools
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec, Member
from kdlab.models.exported import load_exported
from kdlab.models.model import read_card
from kdlab.report.machine import git_commit, machine, versions
from kdlab.report.model_card import model_card
from kdlab.run.carry_out import carry_out
from kdlab.run.handle import Run
from kdlab.run.outcome import outcome
from kdlab.run.shipping import costs_beside
from kdlab.run.side_by_side import overview
from kdlab.run.tracker import Tracker
from kdlab.train.events import EventLog, MemberLog
from kdlab.train.teacher import PreparedTeachers


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
        self.setup = TrainingSetup(
            self.spec,
            self.hash,
            emit=self.log.emit,
            emit_teacher=MemberLog(self.log, "teacher").emit,
            stop=stop,
        )
        self.pools = Pools(run, self.setup, self.log.emit, stop, pool)
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
        return self.setup.data

    @property
    def teacher(self) -> PreparedTeachers:
        return self.setup.teacher

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
        made = self.spec.method.summarise(self.spec, self.run)
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
        log, method = MemberLog(self.log, member.name), self.spec.method
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
            hosts=self.hosts,
            chaos=partial(self._chaos, log),
        )
        method.prepare(training)
        log.emit("member_started", source=member.source_name, seed=member.seed)
        begin = time.time()
        result = method.train(training)
        result |= {
            "source": member.source_name,
            "seed": member.seed,
            "member": member.name,
            "wall_seconds": time.time() - begin,
            "teacher_top1": self.setup.teacher_top1 if taught else None,
            "costs": self._costs(Path(result["model_path"]), log, taught=taught),
        }
        card = folder / "model_card.md"
        card.write_text(self._card(result), encoding="utf-8")
        artifacts = [result["model_path"], result["best_path"], str(card)]
        artifacts += [str(Path(p).with_suffix(".json")) for p in artifacts[:2]]
        artifacts += method.artifacts(folder)
        log.emit("member_done", result=result, artifacts=sorted(set(artifacts)))
        return result

    @contextmanager
    def _chaos(
        self, log: MemberLog, pool: Pool | None, ranks: Ranks
    ) -> Iterator[OwnTargets | None]:
        """The trouble that `chaos:` asks for, while a member trains."""
        if self.spec.chaos is None:
            yield None
            return
        targets = OwnTargets(pool, ranks)
        tls = None if pool is None else pool.tls
        unrest = Unrest(self.spec.chaos, targets, log.emit, tls)
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
            thresholds=list(spec.soft_labels.bounds(spec.train.batch)),
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
