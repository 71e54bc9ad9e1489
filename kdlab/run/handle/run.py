"""The handle of a run, whose process is separate and outlives this one."""

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kdlab.changes import change
from kdlab.changes.tunable import Tunable
from kdlab.cluster.notebook_components import package_components
from kdlab.config import yaml_text
from kdlab.config.home import locked, make_private, runs_folder, write_json
from kdlab.config.load import spec_hash
from kdlab.config.registry import component_names
from kdlab.config.spec import Spec
from kdlab.errors import BadInput, ClusterError
from kdlab.events.event import Event
from kdlab.events.log import select
from kdlab.events.runs import TeacherTraining
from kdlab.experiment import folder as folders
from kdlab.experiment.folder import RunFolder, RunStatus
from kdlab.renamed import warn_renamed
from kdlab.report.costs import cost_table
from kdlab.report.table import result_table
from kdlab.run.handle import changes
from kdlab.run.handle.job_handle import Components, JobHandle, spawn, viewers
from kdlab.run.handle.plans import plans
from kdlab.run.handle.result import Result

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kdlab.run.handle.plans import PlanSheets
    from kdlab.run.outputs.examination import ModelInspection
    from kdlab.run.outputs.prediction import Predictions


class CheckedExperiment(Protocol):
    """The part of an experiment that a run folder stores."""

    name: str

    @property
    def spec(self) -> Spec: ...


_started_here: list[RunFolder] = []  # runs that this process started, oldest first


def start(experiment: CheckedExperiment) -> "Run":
    """Create a run folder and start its process. The experiment is already checked."""
    run, components = create_folder(experiment, "starting")
    with run.held() as lock:
        spawn(run, components, lock)
    _started_here.append(run)
    return Run(run)


def create_folder(
    experiment: CheckedExperiment, state: str, path: Path | None = None
) -> tuple[RunFolder, Components]:
    """Create a run folder (None: a new path) with its spec; return it and the cell components."""
    if path is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = runs_folder() / f"{stamp}-{secrets.token_hex(2)}"
    run = RunFolder(path)
    resolved = experiment.spec.to_dict()
    components = package_components(component_names(resolved))
    created = False  # an existing folder stays as it is
    try:
        make_private(path.parent)
        path.mkdir(mode=0o700)  # a spec may hold addresses with passwords
        created = True
        (path / "spec.yaml").write_text(yaml_text.dump(resolved), encoding="utf-8")
        write_json(path / "components.json", components)
        run.write_status(state=state, created=time.time())
        run.write_origin(experiment.name, spec_hash(resolved))
    except OSError as error:
        if created:
            shutil.rmtree(path, ignore_errors=True)
        raise ClusterError(
            f"The run's folder {path} cannot be written: {error}. Nothing was started. Make "
            "room, or move the runs with KDLAB_RUNS."
        ) from error
    return run, components


def resume(run_id: str, trust_components: bool = False, anew: bool = False) -> "Run":
    """Resume a run that was stopped, failed or lost, from its newest checkpoint.

    Args:
        run_id: as `attach` takes it.
        trust_components: run the source of components that came from a notebook cell.
        anew: where all checkpoints of a training or of its teacher are damaged, put them
            aside and start that training again.

    Raises:
        BadInput: the run is under way or finished.
        NotFoundError: no such run.
    """
    run = folders.find(run_id)
    _check_resumable(run, run.status().state)
    run.check_format()
    components = run.components()
    if components and not trust_components:
        raise BadInput(
            f"Run {run.run_id} uses components from a notebook cell "
            f"({', '.join(components)}). Their source in {run.path}/components.json is only "
            f"run when you say so: kdlab resume {run.run_id} --trust-components"
        )
    with run.held() as lock:
        state = run.raw_status().state  # another resume may have come first
        _check_resumable(run, "lost" if state in folders.UNDER_WAY else state)
        if anew:
            _set_damaged_aside(run)
        run.write_status(state="starting", created=time.time(), error=None)
        spawn(run, components, lock)
    return Run(run)


def _check_resumable(run: folders.RunFolder, state: str | None) -> None:
    if state not in ("stopped", "failed", "lost"):
        raise BadInput(f"Run {run.run_id} is {state}; there is nothing to resume.")


def _set_damaged_aside(run: folders.RunFolder) -> None:
    """Set damaged checkpoints aside, of its trainings and of a teacher that it began to train."""
    from kdlab.train import checkpoint  # torch, a second

    for folder in run.path.glob("members/**/checkpoints"):
        checkpoint.set_aside(folder)
    for begun in select(run.events, TeacherTraining):
        teacher = Path(begun.folder)
        with locked(teacher.with_suffix(".lock")):  # other runs want the same one
            checkpoint.set_aside(teacher / "checkpoints")


def attach(run_id: "str | Run" = "last") -> "Run":
    """Return the handle of an existing run: by id, by part of it, or the last one.

    Args:
        run_id: "last" is the last run that this process started, as another notebook may have
            started one since; if it started none, the last of all. A handle stays itself.

    Raises:
        NotFoundError: no such run; names the nearest.
    """
    if not isinstance(run_id, str):
        return run_id
    started = [run for run in _started_here if run.path.parent == runs_folder()]
    if run_id == "last" and started and started[-1].path.is_dir():
        return Run(started[-1])
    return Run(folders.find(run_id))


class Run(JobHandle):
    """A handle to watch, steer, wait for and stop a run; one run may have several handles."""

    @property
    def result(self) -> Result:
        """The result of a finished run, with the keys of `kdlab run --json`.

        Raises:
            RunFailed, RunStopped, NotFoundError: there is none; the message has the reason.
        """
        return Result({**self._result_or_raise(), "tracking_error": self.status.tracking})

    def _why_no_result(self, status: RunStatus) -> str:
        if status.state == "stopped":
            return (
                f"Run {self.id} was stopped by the user; its checkpoints are kept.\n"
                f"Continue with:\n    kdlab resume {self.id}"
            )
        if status.state not in ("failed", "lost"):
            return f"Run {self.id} is {status.state}; it has no result yet."
        what = status.error or "no reason was recorded"
        if status.state == "lost":
            what = "its process was killed from outside or the machine went down"
        words = f"Run {self.id} failed: {what}\nLog: {self.folder.log}"
        again = f"    {self.folder.resume_command}"
        if again in what:  # the message on a full disk has it
            return words
        return f"{words}\nFix the cause, then continue from its last checkpoint:\n{again}"

    def live(self, renderer: Literal["auto", "canvas", "svg"] = "auto") -> object:
        """Watch the run: in a notebook a monitor with controls, in a terminal lines.

        The monitor returns at once, the lines when the run ends. Neither closing nor
        interrupting them touches the run.

        Args:
            renderer: draws the notebook's curves; `auto` takes SVG where a page cannot show
                the canvas.
        """
        shown = self._shown_live(lambda: viewers["run"](self, renderer))
        if shown is self and self.state == "finished":
            print(self.table())
        return shown

    def resume(self, *, trust_components: bool = False, anew: bool = False) -> "Run":
        """Resume from the newest checkpoint in a new process; see `resume` of this module."""
        return resume(self.id, trust_components, anew)

    @contextmanager
    def lines(self) -> Iterator[Callable[[Event], None]]:
        from kdlab.report.progress import Progress

        with Progress() as progress:
            yield progress.on_event

    def examine(
        self,
        split: Literal["test", "validation"] = "test",
        most: int = 2000,
        *,
        closely: bool = False,
    ) -> "ModelInspection":
        """Compare predictions of the students and the teacher on images held out from training.

        Args:
            split: of the data.
            most: images at most.
            closely: also search the whole set, by the teacher's features, for near-duplicate
                images and for labels that look wrong.

        Raises:
            NotFoundError: no training has finished yet.
        """
        from kdlab.run.outputs.examination import examine  # imports torch

        return examine(self.folder, split, most, closely=closely)

    def predict(
        self, images: object, top: int = 3, member: str | None = None, *, best: bool = False
    ) -> "Predictions":
        """Classify images outside the data set with the student.

        Args:
            images: a path of an image or of a folder, an image in memory (Pillow's, or
                (H, W, C) uint8), or several of these.
            top: most probable classes to return for each image.
            member: name of a training; None takes the best on validation.
            best: take the weights of the best epoch on validation instead of the last.

        Raises:
            BadInput, DataError: there is no image, or one is damaged.
            NotFoundError: the run has no student yet.
        """
        from kdlab.run.outputs.prediction import answers  # imports torch

        return answers(str(self.id), images, top, member, best=best)

    def label(self, folder: "str | Path", out: "str | Path", **options: Any) -> None:
        """Write predictions for photos as a CSV table to review, least certain first.

        Args:
            folder: of images, or a zip or tar file of them; an unreadable image gets a row, too.
            out: file of the table.
            options: `member`, `best` as in `predict`; `by_name`: sort by name; `force`: overwrite.
        """
        from kdlab.run.outputs.prediction import label  # imports torch

        label(str(self.id), folder, out, **options)

    def test_images(self, count: int = 8) -> "list[NDArray[np.uint8]]":
        """Return images (H, W, C) of the data that no network was trained on, to try `predict`.

        Args:
            count: images to return, taken from the classes in turn.

        Raises:
            BadInput: `count` is less than 1.
        """
        from kdlab.run.outputs.prediction import test_images  # imports torch

        return test_images(self.folder, count)

    def plans(self) -> "PlanSheets":
        """The plans of blockwise distillation: which device trains which blocks.

        Raises:
            NotFoundError: the run has no plan, or none yet.
        """
        return plans(self.folder)

    def table(self) -> str:
        """A text table of members (mean ± std over seeds), their costs and the verdict.

        Raises:
            RunFailed, RunStopped, NotFoundError: there is no result; the message has the reason.
        """
        result = self.result
        costs = result.get("costs")  # older runs have none
        parts = [
            result_table(result["runs"], result.get("teacher_top1")),
            cost_table(costs) if costs else "",
            fill(result.verdict(), 100),
        ]
        return "\n\n".join(filter(None, parts))

    def pause(self) -> None:
        """Pause after this step or the next, until `go_on`. Teachers and ranks stay.

        Raises:
            BadInput: the run has ended, or nothing trains yet.
        """
        changes.send(self.folder, change.Pause)

    def go_on(self) -> None:
        """Continue after `pause`."""
        changes.send(self.folder, change.GoOn)

    def checkpoint(self) -> None:
        """Save the state after this step."""
        changes.send(self.folder, change.SaveCheckpoint)

    def set(self, /, **values: float) -> None:
        """Change tunables of the training from the next step on.

            run.set(**{"loss.temperature": 2.0, "lr_factor": 0.5})

        Raises:
            BadInput: a name is unknown, or the run has ended.
            SpecError: the spec would not allow a value.
        """
        changes.send(self.folder, change.SetValues, set=values)

    def back(self, to: int | None = None) -> int:
        """Return to the checkpoint before the last `set`, and to the values it had.

        With `to`, return to the newest checkpoint kept up to that step. A run that has ended
        does so when it is resumed. Returns the checkpoint's step; BadInput where there is none.
        """
        return changes.go_back(self.folder, to)

    def tunables(self) -> list[Tunable]:
        """Return the settings that `set` accepts, with values and ranges."""
        return changes.tunables(self.folder)

    def knobs(self) -> list[Tunable]:
        """Return `tunables()`; the old name goes with version 0.4."""
        warn_renamed("Run.knobs()", "Run.tunables()")
        return self.tunables()

    def add_teacher(self) -> None:
        """Start one more teacher in the pool of this run."""
        changes.send(self.folder, change.AddTeacher)

    def drain_teacher(self, name: str) -> None:
        """Have a teacher answer its open requests and leave."""
        changes.send(self.folder, change.DrainTeacher, name=name)

    def kill_teacher(self, name: str) -> None:
        """Kill a teacher with SIGKILL; the run's events mark it as chaos."""
        changes.send(self.folder, change.KillTeacher, name=name)

    def scale(self, ranks: int) -> None:
        """Resize the student's group: it saves, then all ranks restart from there.

        Raises:
            BadInput: the run has no group, or cannot have that many ranks.
        """
        changes.scale(self.folder, ranks)

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.origin().experiment}, {self.state})"

    def origin(self) -> folders.RunOrigin:
        """The experiment and spec that the run was made from; "unreadable" if damaged."""
        try:
            return self.folder.origin()
        except BadInput:
            return folders.RunOrigin(experiment="unreadable")

    def _repr_html_(self) -> str:
        origin = self.origin()
        spec = f"{origin.experiment}, spec {origin.spec_hash}"
        result = Result(self.status.result or {})
        return result.document(f"Run {self.id}", spec, self.state).html()
