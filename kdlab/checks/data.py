"""Checks of a data set and its splits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kdlab.checks.check import CodedCheck
from kdlab.data.images import ImageData
from kdlab.data.splits import NAMES, NO_LABEL, TEST, TRAIN, VALIDATION

Pairs = Sequence[tuple[str, str]]  # an image, and the one it is or looks like
_FEW, _FEW_TO_CHOOSE, _FEW_TO_TEST = 10, 50, 400  # training images of a class; of a part
_UNEVEN = 8.0  # images of the largest class over those of the smallest
_UNLIKE = 0.1  # share of images whose class differs between train and test
_NAMED = 5  # images or classes in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Facts of a data set; None where they were not examined.

    counts: (3, classes) labelled images of train, validation and test.
    parts: images of train, validation and test, labelled or not.
    leaks: images of validation and test that are also in train, equal in every byte.
    contradictions: images in two classes.
    alike: images of validation and test that look like one of train and are not in `leaks`.
    suspects: images, each with its label and the class by teacher and neighbours.
    side, size: median of the shorter sides of the originals, and of a view; pixels.
    """

    classes: Sequence[str]
    counts: NDArray[np.int64]
    parts: tuple[int, int, int]
    broken: Sequence[str] | None = None
    looked_at: int = 0  # images decoded to find broken ones
    leaks: Pairs | None = None
    contradictions: Pairs | None = None
    alike: Pairs | None = None
    suspects: Sequence[str] | None = None
    side: float | None = None
    size: int = 0

    @classmethod
    def from_data(cls, data: ImageData) -> Self:
        """Facts from labels and splits alone."""
        parts = data.train, data.validation, data.test
        known = [
            labels[labels != NO_LABEL] for labels in (data.labels[ids] for ids in parts)
        ]
        return cls(
            classes=data.classes,
            counts=np.stack([np.bincount(k, minlength=len(data.classes)) for k in known]),
            parts=(len(data.train), len(data.validation), len(data.test)),
            size=data.shape[1],
        )

    @property
    def guessing(self) -> float:
        """Percent of test images in the most frequent class: top-1 of a constant guess."""
        counts = self.counts[TEST]
        return 100 * float(counts.max() / max(1, counts.sum()))

    def replace(self, **facts: object) -> Self:
        """A copy with further facts."""
        return replace(self, **facts)  # type: ignore[arg-type]


def _counted(images: Sequence[str] | None, words: str) -> str | None:
    """Their number and the first of them, as a result of `CodedCheck.find`."""
    if not images:
        return None if images is None else ""
    more = f"\n  and {len(images) - _NAMED} more" if len(images) > _NAMED else ""
    return f"{len(images)} {words}:" + "".join(f"\n  {k}" for k in images[:_NAMED]) + more


def _paired(pairs: Pairs | None) -> list[str] | None:
    return None if pairs is None else [f"{first}  =  {second}" for first, second in pairs]


def _listed(facts: DataFacts, rows: NDArray[np.int64], part: int | None = None) -> str:
    named = [
        facts.classes[k] if part is None else f"{facts.classes[k]} {facts.counts[part][k]}"
        for k in rows[:_NAMED]
    ]
    more = ", ..." if len(rows) > _NAMED else ""
    return f"{len(rows)} of {len(facts.classes)} classes ({', '.join(named)}{more})"


class LeakedImages(CodedCheck[DataFacts]):
    code = "KD-D01"
    title = "no image of validation or test is in train"
    do = "Delete one of each pair, or move both into the same part"

    def find(self, facts: DataFacts) -> str | None:
        if not (facts.parts[TRAIN] and sum(facts.parts[1:])):
            return None
        return _counted(
            _paired(facts.leaks), "images of validation or test are in train, too"
        )


class NearDuplicates(CodedCheck[DataFacts]):
    code = "KD-D02"
    title = "no image of validation or test looks like one of train"
    do = "Put what was taken together into the same part, such as all photos of one object"

    def find(self, facts: DataFacts) -> str | None:
        return _counted(
            _paired(facts.alike), "images of validation or test look like one of train"
        )


class SuspectLabels(CodedCheck[DataFacts]):
    code = "KD-D03"
    title = "labels agree with what similar images are"
    level = "tip"
    do = "Look at them; correct the label or delete the image"

    def find(self, facts: DataFacts) -> str | None:
        return _counted(facts.suspects, "labels look wrong")


class ContradictedLabels(CodedCheck[DataFacts]):
    code = "KD-D04"
    title = "no image is in two classes"
    do = "Delete the wrong one of each pair"

    def find(self, facts: DataFacts) -> str | None:
        return _counted(_paired(facts.contradictions), "images are in two classes")


class BrokenImages(CodedCheck[DataFacts]):
    code = "KD-D05"
    title = "all images can be decoded"
    do = "Replace or delete them, or leave them out with data.broken=skip"

    def find(self, facts: DataFacts) -> str | None:
        return _counted(facts.broken, f"of {facts.looked_at:,} images cannot be decoded")


class FewTrainingImages(CodedCheck[DataFacts]):
    code = "KD-D06"
    title = f"each class has at least {_FEW} training images"
    level = "tip"
    do = "More images of these classes, a pretrained teacher, or leave the classes out"

    def find(self, facts: DataFacts) -> str | None:
        counts = facts.counts[TRAIN]
        few = np.flatnonzero((counts > 0) & (counts < _FEW))
        return (
            f"fewer than {_FEW} train images of {_listed(facts, few, TRAIN)}"
            if len(few)
            else ""
        )


class FewValidationImages(CodedCheck[DataFacts]):
    code = "KD-D07"
    title = f"there are at least {_FEW_TO_CHOOSE} validation images"
    level = "tip"
    do = "A larger data.validation_share"

    def find(self, facts: DataFacts) -> str | None:
        images = facts.parts[VALIDATION]
        if not images:
            return None  # KD-D11 reports it
        if images >= _FEW_TO_CHOOSE:
            return ""
        return (
            f"the best epoch is chosen by few validation images: {images}, each "
            f"{100 / images:.1f} points; with fewer than {_FEW_TO_CHOOSE} chance chooses"
        )


class FewTestImages(CodedCheck[DataFacts]):
    code = "KD-D08"
    title = f"there are at least {_FEW_TO_TEST} test images"
    level = "tip"
    do = "More test images, or several seeds (seeds: [0, 1, 2])"

    def find(self, facts: DataFacts) -> str | None:
        images = facts.parts[TEST]
        if not images:
            return None
        if images >= _FEW_TO_TEST:
            return ""
        chance = 196 * (0.8 * 0.2 / images) ** 0.5
        return (
            f"{images} test images: a top-1 of 80 % is known to ± {chance:.1f} points only"
        )


class MissingClasses(CodedCheck[DataFacts]):
    code = "KD-D09"
    title = "each class has images in each part"
    do = "Move some images of these classes there, or leave the classes out"

    def find(self, facts: DataFacts) -> str | None:
        lines = []
        for name, counts, images in zip(NAMES, facts.counts, facts.parts, strict=True):
            rows = np.flatnonzero(counts == 0)
            if images and len(rows) and counts.any():
                held = int(facts.counts[:, rows].sum())
                lines.append(
                    f"no {name} images of {_listed(facts, rows)}; elsewhere they have {held:,}"
                )
        return "; ".join(lines)


class OneClass(CodedCheck[DataFacts]):
    code = "KD-D10"
    title = "there are two classes or more"
    do = "Give images of what the class is to be told from"

    def find(self, facts: DataFacts) -> str | None:
        if len(facts.classes) > 1:
            return ""
        return f"there is one class, {facts.classes[0]}: nothing to tell it from"


class MissingPart(CodedCheck[DataFacts]):
    code = "KD-D11"
    title = "there are training, validation and test images"
    do = "Shares that are drawn: data.validation_share and data.test_share"

    def find(self, facts: DataFacts) -> str | None:
        none = [name for name, n in zip(NAMES, facts.parts, strict=True) if not n]
        return f"there are no {' and no '.join(none)} images" if none else ""


class UnevenClasses(CodedCheck[DataFacts]):
    code = "KD-D12"
    title = "classes have training images in like numbers"
    level = "tip"
    do = "Set data.sampling={balance: 0.5}: half-way to equal"

    def find(self, facts: DataFacts) -> str | None:
        counts = facts.counts[TRAIN]
        some = counts[counts > 0]
        if len(some) < 2:
            return None
        times = some.max() / some.min()
        if times < _UNEVEN:
            return ""
        most, least = counts.argmax(), np.where(counts > 0, counts, counts.max()).argmin()
        return (
            f"{facts.classes[most]} has {times:.0f} times the training images of "
            f"{facts.classes[least]} ({counts[most]:,} and {counts[least]:,})"
        )


class SmallOriginals(CodedCheck[DataFacts]):
    code = "KD-D13"
    title = "photos are at least as large as the views of them"
    level = "tip"
    do = "A data.size of at most the photos' shorter side"

    def find(self, facts: DataFacts) -> str | None:
        if facts.side is None:
            return None
        if facts.side >= facts.size:
            return ""
        return (
            f"half of the photos have a shorter side of {facts.side:.0f} pixels or less, and are "
            f"enlarged to {facts.size}"
        )


class UnlikeSplits(CodedCheck[DataFacts]):
    code = "KD-D14"
    title = "test has the classes of train, in like shares"
    level = "tip"
    do = (
        "Draw test class by class (data.test_share), or look class by class (kdlab examine)"
    )

    def find(self, facts: DataFacts) -> str | None:
        train, test = facts.counts[TRAIN], facts.counts[TEST]
        if not train.sum() or not test.sum():
            return None
        p, q = train / train.sum(), test / test.sum()
        apart = float(np.abs(p - q).sum() / 2)
        # Mean distance of two draws from the same shares, plus three standard deviations.
        spread = np.sqrt(p * (1 - p) * (1 / train.sum() + 1 / test.sum()))
        chance = float(
            np.sqrt(2 / np.pi) * spread.sum() / 2 + 1.5 * np.sqrt((spread**2).sum())
        )
        if apart <= max(_UNLIKE, chance):
            return ""
        most = int(np.abs(p - q).argmax())
        return (
            f"{apart:.0%} of the test images would have to be of another class to be as train: "
            f"{facts.classes[most]} is {p[most]:.0%} of train and {q[most]:.0%} of test"
        )
