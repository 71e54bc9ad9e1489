"""Build a training from a resolved spec: data, teacher, model and loop.

The run's process uses it and, when a student has several ranks, each of them.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kdlab.checks.teacher import TeacherMeasure
from kdlab.config.load import spec_hash
from kdlab.data.images import ImageData
from kdlab.data.samples import PlannedSamples, RankPart, Shard, planned
from kdlab.data.watched import watched_rows
from kdlab.events.event import Emit, discard_event
from kdlab.events.general import Note
from kdlab.experiment.feature_setup import (
    add_stats,
    feature_job,
    row_length,
    teacher_taps,
    two_images,
)
from kdlab.experiment.spec import ExperimentSpec, Member
from kdlab.experiment.teacher_check import (
    check_teacher,
    check_validation,
    validated,
)
from kdlab.models.ensemble import combined
from kdlab.models.headless import last_linear
from kdlab.models.model import Normalised, load_weights
from kdlab.models.pixel_mean import fit_pixel_mean
from kdlab.models.with_features import WithFeatures
from kdlab.soft_labels.source import LoadedTeacher
from kdlab.train.inherited import inherit, some_views
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentJob
from kdlab.train.teacher import PreparedTeacher, PreparedTeachers, frozen, loaded, prepare


def head_of(teacher: Normalised, data: ImageData) -> tuple[str, nn.Linear]:
    """Return the name of a network's last layer, and the layer.

    Raises:
        ModelError: its logits come from something else.
    """
    name = last_linear(teacher, two_images(data))
    head = teacher.net.get_submodule(name)
    assert isinstance(head, nn.Linear)
    return name, head.requires_grad_(requires_grad=False)


def short_hash(taps: Sequence[tuple[str, ...]]) -> str:
    """Hash the layers whose outputs are used; part of the fingerprint of soft labels."""
    return hashlib.sha256(
        json.dumps(taps[0] if len(taps) == 1 else taps).encode()
    ).hexdigest()[:8]


def network_of(spec: ExperimentSpec, data: ImageData) -> Normalised:
    """Build the network of the only teacher, with random weights."""
    (network,) = networks_of(spec, data).values()
    return network


def networks_of(spec: ExperimentSpec, data: ImageData) -> dict[str, Normalised]:
    """Build the networks of all teachers, by name, with random weights."""
    return {
        teacher.called: teacher.model.without_weights().build(
            0 if teacher.headless else len(data.classes), data.shape[0]
        )
        for teacher in spec.teachers()
    }


class TrainingSetup:
    """Parts of a training, created on first use and cached.

    `emit` gets notes on the data, `emit_teacher` events of training a missing teacher.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        *,
        emit: Emit = discard_event,
        emit_teacher: Emit = discard_event,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.spec, self.stop = spec, stop
        self._emit, self._emit_teacher = emit, emit_teacher

    @cached_property
    def spec_hash(self) -> str:
        """Hash of the spec: a checkpoint of another spec cannot be continued."""
        return spec_hash(self.spec.to_dict())

    @cached_property
    def data(self) -> ImageData:
        return self.spec.data.load(lambda line: self._emit(Note(message=line)), verify=True)

    @cached_property
    def teacher(self) -> PreparedTeachers:
        if self.spec.combine.weigh == "validation":
            check_validation(self.data)  # before hours of training
        threads = torch.get_num_threads()
        specs = self.spec.teachers()
        members = [prepare(one, self._emit_teacher, self.stop, self.data) for one in specs]
        torch.set_num_threads(threads)  # the teachers' recipes may set another number
        return self.combine(tuple(members))

    def combine(self, members: tuple[PreparedTeacher, ...]) -> PreparedTeachers:
        """Combine teachers as the experiment says."""
        settings, train = self.spec.combine, self.spec.train
        teachers = PreparedTeachers(members, settings.by)
        if len(teachers.knowing.members) < 2 or settings.weigh == "cards":
            return teachers
        device = train.chosen_device()
        weighed = validated(teachers.knowing, self.data, device, train.evaluate_batch)
        return replace(weighed, members=members)

    @cached_property
    def teacher_measure(self) -> TeacherMeasure | None:
        """Accuracy of the teacher or ensemble on this data; None for teachers without classes.

        Raises:
            TeacherRefused: it is below the card's `min_top1`.
        """
        train, teachers = self.spec.train, self.teacher.knowing
        if not teachers.members:
            return None
        return check_teacher(
            teachers,
            self.data,
            train.chosen_device(),
            train.evaluate_batch,
            self._emit_teacher,
        )

    def student_begins(self) -> str | None:
        """Return a line on the student's initial weights; None where they are random."""
        origin, data = self.spec.student.origin(), self.data
        if origin is None:
            return None
        with torch.random.fork_rng():
            model = self.spec.student.build(len(data.classes), data.shape[0], refit=True)
        return f"the student begins with the weights of {origin}{model.anew}"

    def prepare_teacher(self) -> None:
        """Train the teacher if there is none yet, and measure it."""
        _ = self.teacher_measure

    def load_teacher(self, *, logits: bool = False) -> LoadedTeacher:
        """Load the teacher in this process; with `features`, inner outputs follow the logits.

        Args:
            logits: return logits only, also with `features`.
        """
        device = self.spec.train.chosen_device()
        # Building draws random weights before it loads the file's; the student's random state must
        # not depend on whether that happened before or after a resume.
        with torch.random.fork_rng():
            if self.spec.features and not logits:
                _, model, _, fingerprint = self.tapped()
                return loaded(model, fingerprint, device)
            return self.teacher.knowing.load(self.data, device)

    def tapped(self) -> tuple[list[WithFeatures], nn.Module, int, str]:
        """Build the teachers with their inner outputs.

        Returns the spec of each, one network of all, its outputs per sample and its fingerprint.
        """
        data, teachers, networks = self.data, self.teacher, self.networks()
        taps = teacher_taps(self.spec.features, networks, data)
        row = row_length(taps, networks, data)
        specs, models = list[WithFeatures](), list[Normalised]()
        for member, network, names in zip(
            teachers.members, networks.values(), taps, strict=True
        ):
            bare = member.spec.model.without_weights()
            specs.append(WithFeatures(model=bare, taps=names, classes=network.num_classes))
            with torch.random.fork_rng():
                models.append(specs[-1].build(row, data.shape[0]))
            load_weights(models[-1].net, member.weights, member.sha256)
        model = frozen(combined(models, teachers.combination))
        return specs, model, row, f"{teachers.fingerprint}-{short_hash(taps)}"

    def networks(self) -> dict[str, Normalised]:
        """Load all teachers by name; the student's random state stays as it is."""
        data = self.data
        with torch.random.fork_rng():
            return {
                member.spec.called: member.build(len(data.classes), data.shape[0])
                for member in self.teacher.members
            }

    def teacher_model(self) -> Normalised:
        """Load the only teacher."""
        (network,) = self.networks().values()
        return network

    @cached_property
    def teacher_head(self) -> tuple[str, nn.Linear]:
        """Name of the teacher's last layer, and the layer; ModelError as for `head_of`."""
        return head_of(self.teacher_model(), self.data)

    def samples(
        self,
        member: Member,
        part: RankPart | None = None,
        shard: Shard | None = None,
        **plan: int,
    ) -> PlannedSamples:
        """Plan the samples of a member; `plan` overrides fields of `Plan`."""
        spec, train = self.spec, self.spec.train
        keys: dict[str, Any] = {
            "batch": train.batch,
            "seed": member.seed,
            "epochs": train.epochs,
        }
        if spec.aggregation.smallest_batch is not None:
            keys["smallest"] = spec.aggregation.smallest_batch
        data = self.data
        if member.source.needs_teacher == "none":
            data = data.labelled_only()  # the others need a teacher
        facts = spec.data.to_dict()
        return planned(data, facts, part=part, shard=shard, **keys | plan)

    def loop(
        self,
        member: Member,
        folder: Path,
        emit: Emit,
        *,
        samples: PlannedSamples | None = None,
        **rest: Any,
    ) -> StudentLoop:
        """Create a loop; `rest` sets fields of `StudentJob`."""
        spec, data = self.spec, self.data
        torch.manual_seed(member.seed)
        model_spec = rest.pop("model_spec", spec.student)
        model = model_spec.build(len(data.classes), data.shape[0], refit=True)
        fit_pixel_mean(model, data.inputs, data.train)
        fields: dict[str, Any] = {"recipe": spec.train, "model": model, "stop": self.stop}
        taught = member.source.needs_teacher != "none"
        fresh = taught and model_spec.origin() is None and "model" not in rest
        if spec.method.inherits and fresh:
            teacher = self.teacher_model()
            if not inherit(model, teacher, some_views(teacher, data)):
                message = "the student shares too few layers with its teacher to inherit"
                emit(Note(message=message))
        if member.source.gives_hidden:
            fields["head"] = self.teacher_head[1]
        if spec.features and taught:
            features = feature_job(spec.features, self.networks(), model, data)
            if any(loss.balance != "none" for loss in features.losses):
                features = add_stats(
                    features, self.teacher.fingerprint, self.load_teacher, data
                )
            fields["features"] = features
        job = StudentJob(
            model_spec=model_spec,
            samples=samples or self.samples(member),
            loss=spec.loss,
            seed=member.seed,
            folder=folder,
            spec_hash=self.spec_hash,
            emit=emit,
            watched=watched_rows(data),
            **fields | rest,
        )
        return StudentLoop(job)
