"""An experiment for somebody's photos: sizes, networks and a recipe, each with its reason.

What a machine can do is measured, not guessed: the networks are timed at the sizes that come into
question, and the largest is taken that can be trained for enough epochs in the time there is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kdlab.config import folders
from kdlab.config.check import construct
from kdlab.config.load import compose_card, from_dict
from kdlab.data.encoded.pictures import EncodedData
from kdlab.data.images import DataSpec
from kdlab.errors import BadInput
from kdlab.models.model import ModelSpec
from kdlab.models.published import hub_answers
from kdlab.report.table import duration
from kdlab.run.outputs.data_sheet import DataSheet
from kdlab.run.rates import NetworkRates, network_rates
from kdlab.run.wishes import Wishes
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import TeacherSpec

_SIZES = {"cpu": (128, 96, 64, 48, 32), "cuda": (224, 160, 128, 96, 64, 32)}
_SMALL = 64  # pixels: up to here networks for small images see more than those for photos
_ENOUGH, _MOST = 15, 100  # epochs of a student from scratch
_ENOUGH_TUNED, _MOST_TUNED = 3, 15  # of one that starts from published weights
_TEACHERS_SHARE = 0.6  # of the time: it is trained once and kept
_USED = 0.85  # of the time, for what starts and looks
_UNEVEN = 8.0  # times as many images of one class as of another
_LOSS = {
    "type": "losses/hinton",
    "temperature": 4.0,
    "hard_weight": 0.2,
    "soft_weight": 0.8,
}
# In the same minutes a teacher of depth 8 sees its photos twice as often as one of depth 14: on
# 3,216 photos of clothes 70.7 % against 64.0 %, and its student 61.5 % against 59.5 %.
_FRESH = {
    "student": {"type": "models/cifar_resnet", "depth": 8, "width": [8, 16, 32, 64]},
    "teacher": {"type": "models/cifar_resnet", "depth": 8, "width": [16, 32, 64, 128]},
}
# Of larger photos: one that timm loads again, with 0.4 million weights. With labels alone, in 130 s
# of one core, 68.8 % at 96 pixels, where the student above had 46.7 % at 64.
_OF_PHOTOS: Mapping[str, dict[str, Any]] = {
    **_FRESH,
    "student": {"type": "timm/test_resnet"},
}
_PUBLISHED = {
    "student": {"type": "timm/mobilenetv3_small_100", "pretrained": True},
    "teacher": {"type": "timm/resnet18", "pretrained": True},
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A config as a tree, and why each part is as it is."""

    config: dict[str, Any]
    reasons: dict[str, str] = field(default_factory=dict)  # by dotted key
    seconds: float = 0.0  # about, of the whole run


def recommend(
    wishes: Wishes, sheet: DataSheet, say: Callable[[str], None] = lambda line: None
) -> Recommendation:
    """A first experiment.

    Args:
        wishes: what is asked for.
        sheet: of its data.
        say: gets a line for each thing that is measured.

    Raises:
        BadInput: the time is none, or a network is unknown.
    """
    if not (math.isfinite(wishes.minutes) and wishes.minutes > 0):
        raise BadInput(f"{wishes.minutes:g} minutes are no time to train in.")
    return _Choice(wishes, sheet, say).made()


class _Choice:
    def __init__(
        self, wishes: Wishes, sheet: DataSheet, say: Callable[[str], None]
    ) -> None:
        self.wishes, self.sheet, self.say = wishes, sheet, say
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        asks = (wishes.student, wishes.teacher)
        self.published = None in asks and hub_answers()
        fresh = _OF_PHOTOS if self._side() > _SMALL else _FRESH
        known = _PUBLISHED if self.published else fresh
        self.student = _block(wishes.student, known["student"])
        self.card = _card_of(wishes.teacher)  # of a teacher that is known by name
        if self.card is None:
            self.teacher = _block(wishes.teacher, known["teacher"])
        else:
            self.teacher = compose_card(self.card).data["model"]
        if wishes.weights is not None:
            self.teacher = _bare(self.teacher) | {"weights": wishes.weights}
        self.reasons: dict[str, str] = {}
        self.threads: int | None = None  # of PyTorch; None is its own choice
        if self.device == "cpu":
            self._choose_threads()

    def _choose_threads(self) -> None:
        """One, or as many as there are cores: on a busy machine one is many times as fast."""
        own, size = torch.get_num_threads(), self._sizes()[-1]
        rates = {n: self._rated(self.student, size, n).trained for n in {1, own}}
        self.threads = max(rates, key=lambda n: rates[n])
        shown = ", ".join(f"{n}: {rate:,.0f}" for n, rate in sorted(rates.items()))
        self.reasons["train.threads"] = f"measured, samples/s by threads: {shown}"

    @property
    def taught(self) -> bool:
        """Whether the teacher is trained first."""
        return self.wishes.weights is None and self.teacher.get("weights") is None

    @property
    def tuned(self) -> bool:
        """Whether the student starts from published weights."""
        return bool(self.student.get("pretrained"))

    def made(self) -> Recommendation:
        size, epochs, teacher_epochs, seconds = self._times()
        config: dict[str, Any] = {
            "about": f"Distil a small network for the photos in {self.wishes.data}.",
            "data": self._data(size),
            "teacher": self._teacher(teacher_epochs),
            "student": self.student,
            "loss": dict(_LOSS),
            "soft_labels": {"type": "soft_labels/in_process"},
            "compare": ["none", "in_process"],
            "train": self._train(epochs, tuned=self.tuned),
        }
        self._give_reasons()
        return Recommendation(config, self.reasons, seconds)

    # Sizes and epochs

    def _times(self) -> tuple[int, int, int, float]:
        """Pixels, epochs of student and teacher, seconds in all."""
        budget = 60 * self.wishes.minutes * _USED
        images = len(self.sheet.data.train)
        least, most = (_ENOUGH_TUNED, _MOST_TUNED) if self.tuned else (_ENOUGH, _MOST)
        taught = self.taught
        share = 1 - _TEACHERS_SHARE if taught else 1.0
        sizes = self._sizes()
        small = sizes[-1]
        known = self._rates(small)
        for size in sizes:
            # Work grows with the pixels: what cannot fit is not measured.
            rates = known if size == small else [r * (small / size) ** 2 for r in known]
            epochs = _fitting(share * budget, images, rates, most)
            if size != small and epochs >= least:
                rates = self._rates(size)
                epochs = _fitting(share * budget, images, rates, most)
            if epochs >= least:
                break
        step, answer, teach = (1 / rate for rate in rates)
        both = images * (2 * step + answer)
        epochs = max(1, epochs)
        left = budget - epochs * both
        teacher_epochs = max(1, min(2 * most, int(left / (images * teach))))
        total = epochs * both + (teacher_epochs * images * teach if taught else 0.0)
        self.reasons["data.size"] = (
            f"pixels of a side: of {', '.join(map(str, sizes))} the largest at which this machine "
            f"trains a student for {least} epochs in {self.wishes.minutes:g} minutes, or the least"
        )
        self.reasons["train.epochs"] = f"what fits in {self.wishes.minutes:g} minutes here"
        return size, epochs, teacher_epochs, total / _USED

    def _sizes(self) -> list[int]:
        side, sizes = self._side(), _SIZES[self.device]
        fitting = [size for size in sizes if size <= side] or [sizes[-1]]
        photos = [size for size in fitting if size > _SMALL]
        return photos if photos and self._wants_photos() else fitting

    def _wants_photos(self) -> bool:
        """Whether a network halves its images five times, as those for photos do."""
        kinds = (self.student["type"], self.teacher["type"])
        return any(str(kind).startswith(("timm/", "torchvision/")) for kind in kinds)

    def _side(self) -> float:
        """Median of the shorter sides, pixels."""
        data = self.sheet.data
        if not isinstance(data, EncodedData):
            return float(data.shape[1])
        index = data.inputs.store.index
        sides = np.minimum(index.height, index.width)
        return float(np.median(sides[sides > 0])) if (sides > 0).any() else float(_SMALL)

    def _rates(self, size: int) -> tuple[float, float, float]:
        """Samples/s: the student's steps, the teacher's answers, the teacher's steps."""
        self.say(f"measuring both networks at {size} by {size} pixels")
        student = self._rated(self.student, size, self.threads)
        teacher = self._rated(self.teacher, size, self.threads)
        return student.trained, teacher.asked, teacher.trained

    def _rated(
        self, block: Mapping[str, Any], size: int, threads: int | None
    ) -> NetworkRates:
        data = self.sheet.data
        model = construct(ModelSpec, from_dict(_bare(block), "the network"))
        shape = (data.shape[0], size, size)
        return network_rates(model, Recipe(threads=threads), shape, len(data.classes))

    # Blocks

    def _data(self, size: int) -> dict[str, Any]:
        given = DataSpec.short_form({"type": self.wishes.data})
        if given is None:
            raise BadInput(f"There are no images at {self.wishes.data}.")
        first = {key: given[key] for key in ("type", "root")}  # as people write it
        block = {**first, **given, "size": size, "kept": "encoded"}
        self.reasons["data.augment"] = (
            "each epoch shows another part of each photo, or its mirror image; turn flip off "
            "where left and right differ, as with digits"
        )
        self.reasons["data.kept"] = "views are cut from the photos as they are"
        if self.sheet.broken:
            block["broken"] = "skip"
            self.reasons["data.broken"] = (
                f"{len(self.sheet.broken)} files cannot be decoded and are left out"
            )
        counts = [row[1] for row in self.sheet.counts() if row[1]]
        if counts and max(counts) >= _UNEVEN * min(counts):
            block["sampling"] = {"balance": 0.5}
            self.reasons["data.sampling"] = (
                f"the largest class has {max(counts) / min(counts):.0f} times the images of the "
                "smallest: half-way to drawing all equally often"
            )
        return block

    def _teacher(self, epochs: int) -> dict[str, Any]:
        if self.card is not None and self.wishes.weights is None:
            self.reasons["teacher"] = "as you said"
            return {"use": self.card}
        block: dict[str, Any] = {"type": TeacherSpec.component, "model": self.teacher}
        if self.wishes.weights is not None:
            self.reasons["teacher.model"] = "with your weights: it is measured, not trained"
            return block
        tuned = bool(self.teacher.get("pretrained"))
        return block | {"data": "${data}", "recipe": self._train(epochs, tuned=tuned)}

    def _train(self, epochs: int, *, tuned: bool) -> dict[str, Any]:
        lr = 0.01 if tuned else 0.1
        warmup = min(1.0, epochs / 4)
        recipe = {"epochs": epochs, "batch": 64, "lr": lr, "warmup_epochs": warmup}
        return recipe if self.threads is None else recipe | {"threads": self.threads}

    def _give_reasons(self) -> None:
        scratch = (
            "from published weights"
            if self.published
            else "from scratch: the hub with published weights cannot be reached from here"
        )
        for name, wish in (
            ("student", self.wishes.student),
            ("teacher", self.wishes.teacher),
        ):
            key = "teacher.model" if name == "teacher" else name
            why = (
                f"small enough for this machine, {scratch}"
                if wish is None
                else "as you said"
            )
            self.reasons.setdefault(key, why)
        if self.taught:
            self.reasons["teacher.recipe"] = "trained once, then kept for every later run"
        self.reasons["loss"] = "mostly the teacher's soft labels, a little of the true ones"
        self.reasons["compare"] = (
            "the same student without and with its teacher; leave none out to save its time"
        )


def _fitting(seconds: float, images: int, rates: Sequence[float], most: int) -> int:
    """Epochs of a student without a teacher and with it, one after the other."""
    trained, asked, _ = rates
    return min(most, int(seconds / (images * (2 / trained + 1 / asked))))


def _card_of(wish: object) -> str | None:
    """Name of a card of a teacher; None of anything else."""
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
    """Without its weights: speed does not depend on them."""
    return {k: v for k, v in block.items() if k not in ("weights", "sha256", "pretrained")}


def _teacher_name(block: Mapping[str, Any]) -> str:
    return str(block.get("use") or block["model"]["type"])


def _why_teacher(reasons: Mapping[str, str]) -> str:
    return reasons.get("teacher") or reasons["teacher.model"]


def summary(found: Recommendation) -> str:
    """What was chosen, a line for each with its reason."""
    config = found.config
    train, taught = config["train"], config["teacher"].get("recipe")
    lines = [
        f"student   {config['student']['type']} ({found.reasons['student']})",
        f"teacher   {_teacher_name(config['teacher'])} ({_why_teacher(found.reasons)})",
        f"size      {config['data']['size']} ({found.reasons['data.size']})",
        f"epochs    {train['epochs']} of the student"
        + (f", {taught['epochs']} of the teacher" if taught else ""),
        f"time      about {duration(found.seconds)} on this machine",
    ]
    return "\n".join(lines)
