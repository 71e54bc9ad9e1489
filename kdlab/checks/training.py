"""Checks of a run when its trainings have ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kdlab.checks.check import CodedCheck
from kdlab.report.bottleneck import STARVED
from kdlab.report.verdict import (
    ComparedTraining,
    Verdict,
    chance,
    guessed,
    knowledge,
    too_few_epochs,
)

_EARLY = 0.7  # of the epochs: a best epoch before that was long ago


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTraining(ComparedTraining):
    """A training with what is checked of it beside."""

    best_epoch: int = 0
    lost: int = 0  # samples
    without: str = ""  # rounds that went on without a worker, in words
    repeated: int = 0
    starved: float | None = None  # share of its time that it waited for soft labels
    slow_side: str = ""  # what to do about that

    @property
    def name(self) -> str:
        return f"{self.source}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What came out of a run.

    images, validated: test images of each training, and validation images.
    guessing: percent that is right by always saying the commonest class.
    """

    trainings: Sequence[EndedTraining]
    verdict: Verdict | None
    images: int
    validated: int
    guessing: float

    def sources(self) -> list[list[EndedTraining]]:
        """Trainings of each source of soft labels."""
        names = dict.fromkeys(one.source for one in self.trainings)
        return [[one for one in self.trainings if one.source == name] for name in names]


class WorseThanAlone(CodedCheck[RunFacts]):
    code = "KD-R01"
    title = "the student is not worse than without a teacher"
    do = "Use the plain student"

    def find(self, facts: RunFacts) -> str | None:
        told = facts.verdict
        if told is None or told.high is None:
            return None
        if told.high >= 0:
            return ""
        return (
            f"{told.gained:+.1f} points with the teacher ({told.after:.1f} %, alone "
            f"{told.before:.1f} %; {told.low:.1f} to {told.high:.1f} with 95 % confidence)"
        )

    def advice(self, facts: RunFacts) -> str:
        cure = facts.verdict.next if facts.verdict else ""
        return f"{self.do}, or: {cure}" if cure else self.do


class Undecided(CodedCheck[RunFacts]):
    code = "KD-R02"
    title = "it can be told whether the teacher helped"
    level = "tip"
    do = "More seeds (seeds: [0, 1, 2]) or more test images"

    def find(self, facts: RunFacts) -> str | None:
        told = facts.verdict
        if told is None:
            return None
        if told.kind != "cannot_be_told":
            return ""
        ends = "" if told.low is None else f", {told.low:+.1f} to {told.high:+.1f} points"
        return f"whether the teacher helped cannot be told ({told.gained:+.1f}{ends})"


class StillRising(CodedCheck[RunFacts]):
    code = "KD-R03"
    title = "training went on for long enough"
    level = "tip"
    do = "More epochs"

    def find(self, facts: RunFacts) -> str | None:
        if not facts.trainings:
            return None
        return "; ".join(
            words for words, _ in too_few_epochs(facts.sources(), facts.validated)
        )

    def advice(self, facts: RunFacts) -> str:
        cures = [cure for _, cure in too_few_epochs(facts.sources(), facts.validated)]
        return "; ".join(cures) or self.do


class TeacherKnowsNoMore(CodedCheck[RunFacts]):
    code = "KD-R04"
    title = "the teacher knows more than the student alone"
    level = "tip"
    do = "A stronger teacher (pretrained: true in its model, or more epochs of its own)"

    def _reasons(self, facts: RunFacts) -> list[tuple[str, str]] | None:
        alone = [one for one in facts.trainings if one.source == "none"]
        taught = [
            one for one in facts.trainings
            if one.source != "none" and one.teacher_top1 is not None
        ]  # fmt: skip
        if not alone or not taught or not facts.images:
            return None
        return knowledge(fmean(one.top1 for one in alone), taught, facts.images)

    def find(self, facts: RunFacts) -> str | None:
        reasons = self._reasons(facts)
        return None if reasons is None else "; ".join(words for words, _ in reasons)

    def advice(self, facts: RunFacts) -> str:
        return "; ".join(cure for _, cure in self._reasons(facts) or []) or self.do


class PastItsBest(CodedCheck[RunFacts]):
    code = "KD-R05"
    title = "the last epochs are about as good as the best"
    level = "tip"
    do = "Fewer epochs, a smaller learning rate, or more augmentation (data.augment)"

    def find(self, facts: RunFacts) -> str | None:
        if not facts.validated or not any(one.validation for one in facts.trainings):
            return None
        said = []
        for one in facts.trainings:
            if not one.validation or one.best_epoch > _EARLY * one.epochs:
                continue
            best, last = max(one.validation), one.validation[-1]
            if best - last > chance((best,), facts.validated):
                said.append(
                    f"{one.name}: best in epoch {one.best_epoch} of "
                    f"{one.epochs} ({best:.1f} % on validation), {last:.1f} % at the end"
                )
        return "; ".join(said)


class LearnedNothing(CodedCheck[RunFacts]):
    code = "KD-R06"
    title = "each student knows more than a guess"
    do = "A smaller train.lr, more epochs, or the labels (kdlab data)"

    def find(self, facts: RunFacts) -> str | None:
        if not facts.images or not facts.trainings:
            return None
        least = guessed(facts.guessing, facts.images)
        said = [
            f"{one.name}: {one.top1:.1f} % top-1, guessing is right in "
            f"{facts.guessing:.1f} %"
            for one in facts.trainings
            if not one.top1 >= least  # not a number either
        ]
        return "; ".join(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedFacts:
    """Classes, by student, that it never says though images of them were shown."""

    vanished: Mapping[str, Sequence[str]]


class VanishedClasses(CodedCheck[ExaminedFacts]):
    code = "KD-R07"
    title = "each student says each class"
    level = "tip"
    do = "More images of these classes, or data.sampling={balance: 0.5}"

    def find(self, facts: ExaminedFacts) -> str | None:
        return "; ".join(
            f"{name} never says {', '.join(classes[:5])}{', ...' * (len(classes) > 5)}"
            for name, classes in facts.vanished.items()
            if classes
        )


class LostSamples(CodedCheck[RunFacts]):
    code = "KD-R08"
    title = "each sample was trained on once an epoch"
    do = "Report it with the run folder: this is a fault of kdlab"

    def find(self, facts: RunFacts) -> str | None:
        lost, repeated = (
            sum(getattr(one, name) for one in facts.trainings)
            for name in ("lost", "repeated")
        )
        said = f"{lost:,} samples lost, {repeated:,} repeated" if lost or repeated else ""
        return "; ".join([said, *self._left_out(facts)]) if said else ""

    def advice(self, facts: RunFacts) -> str:
        waits = "method.wait_for_lost=true has the others wait for a worker that is lost"
        return waits if self._left_out(facts) else self.do

    def _left_out(self, facts: RunFacts) -> list[str]:
        return [f"{one.name}: {one.without}" for one in facts.trainings if one.without]


class StarvedStudent(CodedCheck[RunFacts]):
    code = "KD-R09"
    title = "the student did not wait for its teachers"
    level = "tip"
    do = "One teacher more, or quicker ones"

    def find(self, facts: RunFacts) -> str | None:
        served = [one for one in facts.trainings if one.starved is not None]
        if not served:
            return None
        return "; ".join(
            f"{one.name}: the student waited {one.starved:.0%} of its time for soft labels"
            for one in served
            if (one.starved or 0.0) > STARVED
        )

    def advice(self, facts: RunFacts) -> str:
        said = [one.slow_side for one in facts.trainings if (one.starved or 0.0) > STARVED]
        return next(filter(None, said), self.do)
