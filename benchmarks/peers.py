"""`kdlab bench peers`: kdlab beside what users would pick instead, in turns in one process.

The same digits, teacher, student, batches, loss, optimiser and precision for all: a loop by
hand, timm's LogitDistillationTask, torchdistill's KD, and kdlab without a teacher, Online,
Offline (soft labels written once) and served. All have one thread; since the served student's
teacher uses the other core, the peers are measured with two threads as well.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median

import psutil
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.harness import Scratch, quiet, report
from benchmarks.peer_loops import (
    DECAY,
    HARD,
    LR,
    MOMENTUM,
    PEERS,
    SOFT,
    TEMPERATURE,
    Step,
    written,
)
from benchmarks.scene import Scene, infer_with
from benchmarks.slices import BUFFER, Turn, compare, ratios
from benchmarks.students import ENDLESS, EPOCHS, loop_of
from kdlab.cluster.served import Served
from kdlab.data.digits import Digits
from kdlab.data.samples import PlannedSamples, planned
from kdlab.losses.hinton import Hinton
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import Normalised
from kdlab.report.figures import EmitLine, Figure, Report, figure
from kdlab.soft_labels.cached import Cached
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import SourceSpec

BATCH = 64
STEPS = 12  # of a slice
TEACHER = CifarResNet(depth=14)
STUDENT = CifarResNet(depth=8, width=(8, 8, 16, 32))
KDLAB = ("kdlab_n_training", "kdlab_online", "kdlab_offline", "kdlab_served")
_PATIENCE_S = 120.0
_RECIPE = replace(ENDLESS, lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY)


@dataclass(slots=True, kw_only=True)
class Peer(Turn):
    """A training loop without kdlab, on kdlab's batches."""

    step: Step
    samples: PlannedSamples

    def train(self) -> Iterator[None]:
        for epoch in range(EPOCHS):
            for ids in self.samples.batches(epoch):
                views = torch.from_numpy(self.samples.views(ids, epoch))
                self.step(views, torch.from_numpy(self.samples.labels(ids)))
                yield


class PeerScene(Scene):
    """Data, teacher, and every variant built on them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        digits = Digits(size=32)
        facts = digits.to_dict()
        samples = planned(digits.load(), facts, batch=BATCH, seed=0, epochs=EPOCHS)
        super().__init__(samples)
        torch.manual_seed(1)
        self.teacher = self.model(TEACHER)
        self.models: dict[str, Normalised] = {}

    def student(self, name: str) -> Normalised:
        """Build a student; all have the same initial weights."""
        torch.manual_seed(0)
        model = STUDENT.build(self.samples.classes, self.samples.data.shape[0])
        self.models[name] = model
        return model

    def peer(self, name: str, threads: int = 1) -> Peer:
        label = name if threads == 1 else f"{name}_{threads}_threads"
        # A copy of the teacher: torchdistill leaves hooks in it.
        step = PEERS[name](copy.deepcopy(self.teacher), self.student(label))
        beside = nullcontext if threads == 1 else lambda: _threads(threads)
        return Peer(name=label, step=step, samples=self.samples, beside=beside)

    def plain(self) -> Peer:
        """Build a loop written by hand, without a teacher; nothing of it is kdlab's."""
        model = self.student("bare_n_training")
        optimizer = torch.optim.SGD(
            model.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY
        )
        model.train()

        def step(views: Tensor, labels: Tensor) -> Tensor:
            loss = cross_entropy(model(views), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Peer(name="bare_n_training", step=step, samples=self.samples)

    def kdlab(self, name: str) -> Turn:
        sources: dict[str, SourceSpec] = {
            "kdlab_n_training": NoTeacher(),
            "kdlab_online": InProcess(),
            "kdlab_offline": Cached(path=str(self.folder / "cache")),
            "kdlab_served": Served(lt=12 * BATCH, ut=BUFFER * BATCH),
        }
        loss = Hinton(temperature=TEMPERATURE, hard_weight=HARD, soft_weight=SOFT)
        rate = 1.0
        if name == "kdlab_served":
            probe = loop_of(STUDENT, self.samples, self.folder / "probe", loss, _RECIPE)
            rate = probe.measure_rate(0.3)
            self.local(TEACHER, self.teacher, teachers=1)
        training = self.training(
            name,
            STUDENT,
            sources[name],
            rate,
            infer=infer_with(self.teacher),
            loss=loss,
            recipe=_RECIPE,
        )
        self.models[name] = training.loop.model
        return training

    @torch.inference_mode()
    def loss_of(self, name: str) -> float:
        """Loss of the trained student, on images of the validation split."""
        data, model = self.samples.data, self.models[name]
        ids = data.validation
        views = torch.from_numpy(data.inputs[ids])
        labels = torch.from_numpy(data.labels[ids])
        model.eval()
        scores = model(views).float()
        soft = Hinton(temperature=TEMPERATURE).soft(scores, self.teacher(views), labels)
        model.train()
        return float(HARD * cross_entropy(scores, labels) + SOFT * soft)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def measure(repeats: int = 6, say: EmitLine = quiet) -> Report:
    """Measure samples/s, loss after equal steps, memory, and lines that a user writes."""
    with PeerScene() as scene:
        variants = [scene.kdlab(name) for name in KDLAB]
        variants += [scene.plain(), *(scene.peer(name) for name in PEERS)]
        variants += [scene.peer(name, threads=2) for name in PEERS]
        compare(variants, rounds=repeats, steps=STEPS, warm_up=BUFFER + 8, say=say)
        steps = (BUFFER + 8) * (2 * repeats + 1) + 2 * repeats * STEPS
        known = {v.name: v for v in variants}
        figures = [*_figures(known, scene, steps), _overhead(known, repeats, say)]
    names = [*PEERS, *KDLAB[1:]]
    say(f"memory of {', '.join(names)}")
    with Scratch() as scratch:
        each = [{"variant": name} for name in names]
        megabytes = scratch.results(memory_mb, each, patience_s=_PATIENCE_S * len(each))
    figures += [
        figure(f"memory_mb/{name}", mb, "MB")
        for name, mb in zip(names, megabytes, strict=True)
    ]
    figures += [
        figure(f"lines/{name}", float(count), "lines") for name, count in written().items()
    ]
    return report("peers", figures)


def _figures(variants: dict[str, Turn], scene: PeerScene, steps: int) -> list[Figure]:
    figures = []
    for name, v in variants.items():
        rates = [BATCH * rate for rate in v.rates]
        figures.append(figure(f"samples_per_second/{name}", rates, "samples/s"))
    for name in [*PEERS, *(f"{name}_2_threads" for name in PEERS), "kdlab_online"]:
        values = ratios(variants["kdlab_served"], variants[name])
        figures.append(figure(f"served_over/{name}", values, "times"))
    bare = scene.loss_of("bare_loop")
    for name, v in variants.items():
        if "n_training" in name:
            continue
        loss = scene.loss_of(name)
        figures.append(figure(f"loss_over_bare_loop/{name}", loss / bare, "ratio"))
        seconds = steps / median(v.rates)
        figures.append(figure(f"seconds_to_equal_loss/{name}", seconds, "s"))
    return figures


def _overhead(variants: dict[str, Turn], repeats: int, say: EmitLine) -> Figure:
    """Compare the loops without a teacher by themselves: they differ by a few percent."""
    ours, bare = variants["kdlab_n_training"], variants["bare_n_training"]
    rounds = 4 * repeats
    compare([ours, bare], rounds=rounds, steps=STEPS, warm_up=2, say=say)
    close = ratios(ours, bare)[-rounds:]
    return figure("n_training_over_bare_loop", close, "ratio")


def memory_mb(variant: str) -> float:
    """Peak megabytes of this process, and of those it starts, with one variant."""
    process, most = psutil.Process(), 0.0
    with PeerScene() as scene:
        turn = scene.peer(variant) if variant in PEERS else scene.kdlab(variant)
        for _ in range((2 * BUFFER + 8) // 4):  # then all buffers are full
            turn.advance(4)
            every = [process, *process.children(recursive=True)]
            # Pages that several share are divided among them.
            most = max(most, sum(p.memory_full_info().pss for p in every) / 1e6)
    return most
