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

_EARLY = 0.7  # share of the epochs; a best epoch before it is early


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTraining(ComparedTraining):
    """A finished training with the facts that checks need."""

    best_epoch: int = 0
    lost: int = 0  # samples
    without: str = ""  # rounds that continued without a worker, as text
    repeated: int = 0
    starved: float | None = None  # share of its time spent waiting for soft labels
    slow_side: str = ""  # advice about that

    @property
    def name(self) -> str:
        return f"{self.source}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Results of a run.

    images, validated: test images of each training, and validation images.
    guessing: percent of test images in the most frequent class.
    """

    trainings: Sequence[EndedTraining]
    verdict: Verdict | None
    images: int
    validated: int
    guessing: float

    def sources(self) -> list[list[EndedTraining]]:
        """Trainings of each source of soft labels."""
        names = dict.fromkeys(t.source for t in self.trainings)
        return [[t for t in self.trainings if t.source == name] for name in names]


class WorseThanAlone(CodedCheck[RunFacts]):
    code = "KD-R01"
    title = "the student is not worse than without a teacher"
    do = "Use the plain student"

    def find(self, facts: RunFacts) -> str | None:
        verdict = facts.verdict
        if verdict is None or verdict.high is None:
            return None
        if verdict.high >= 0:
            return ""
        return (
            f"{verdict.gained:+.1f} points with the teacher ({verdict.after:.1f} %, alone "
            f"{verdict.before:.1f} %; {verdict.low:.1f} to {verdict.high:.1f} with 95 % confidence)"
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
        verdict = facts.verdict
        if verdict is None:
            return None
        if verdict.kind != "cannot_be_told":
            return ""
        low, high = verdict.low, verdict.high
        ends = "" if low is None else f", {low:+.1f} to {high:+.1f} points"
        return f"whether the teacher helped cannot be told ({verdict.gained:+.1f}{ends})"


class StillRising(CodedCheck[RunFacts]):
    code = "KD-R03"
    title = "training was long enough"
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
        plain = [t for t in facts.trainings if t.source == "none"]
        taught = [
            t for t in facts.trainings
            if t.source != "none" and t.teacher_top1 is not None
        ]  # fmt: skip
        if not plain or not taught or not facts.images:
            return None
        return knowledge(fmean(t.top1 for t in plain), taught, facts.images)

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
        if not facts.validated or not any(t.validation for t in facts.trainings):
            return None
        faults = []
        for t in facts.trainings:
            if not t.validation or t.best_epoch > _EARLY * t.epochs:
                continue
            best, last = max(t.validation), t.validation[-1]
            if best - last > chance((best,), facts.validated):
                faults.append(
                    f"{t.name}: best in epoch {t.best_epoch} of "
                    f"{t.epochs} ({best:.1f} % on validation), {last:.1f} % at the end"
                )
        return "; ".join(faults)


class LearnedNothing(CodedCheck[RunFacts]):
    code = "KD-R06"
    title = "each student knows more than a guess"
    do = "A smaller train.lr, more epochs, or the labels (kdlab data)"

    def find(self, facts: RunFacts) -> str | None:
        if not facts.images or not facts.trainings:
            return None
        least = guessed(facts.guessing, facts.images)
        faults = [
            f"{t.name}: {t.top1:.1f} % top-1, guessing is right in {facts.guessing:.1f} %"
            for t in facts.trainings
            if not t.top1 >= least  # not a number either
        ]
        return "; ".join(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedFacts:
    """Classes that each student never predicts although the test images have them."""

    vanished: Mapping[str, Sequence[str]]


class VanishedClasses(CodedCheck[ExaminedFacts]):
    code = "KD-R07"
    title = "each student predicts each class"
    level = "tip"
    do = "More images of these classes, or data.sampling={balance: 0.5}"

    def find(self, facts: ExaminedFacts) -> str | None:
        return "; ".join(
            f"{name} never predicts {', '.join(classes[:5])}{', ...' * (len(classes) > 5)}"
            for name, classes in facts.vanished.items()
            if classes
        )


class LostSamples(CodedCheck[RunFacts]):
    code = "KD-R08"
    title = "each sample was trained on once an epoch"
    do = "Report it with the run folder: this is a fault of kdlab"

    def find(self, facts: RunFacts) -> str | None:
        lost, repeated = (
            sum(getattr(training, name) for training in facts.trainings)
            for name in ("lost", "repeated")
        )
        counts = f"{lost:,} samples lost, {repeated:,} repeated" if lost or repeated else ""
        return "; ".join([counts, *self._left_out(facts)]) if counts else ""

    def advice(self, facts: RunFacts) -> str:
        waits = "method.wait_for_lost=true makes the others wait for a lost worker"
        return waits if self._left_out(facts) else self.do

    def _left_out(self, facts: RunFacts) -> list[str]:
        return [f"{t.name}: {t.without}" for t in facts.trainings if t.without]


class StarvedStudent(CodedCheck[RunFacts]):
    code = "KD-R09"
    title = "the student did not wait for its teachers"
    level = "tip"
    do = "Add a teacher, or use faster ones"

    def find(self, facts: RunFacts) -> str | None:
        served = [t for t in facts.trainings if t.starved is not None]
        if not served:
            return None
        return "; ".join(
            f"{t.name}: the student waited {t.starved:.0%} of its time for soft labels"
            for t in served
            if (t.starved or 0.0) > STARVED
        )

    def advice(self, facts: RunFacts) -> str:
        remedies = [t.slow_side for t in facts.trainings if (t.starved or 0.0) > STARVED]
        return next(filter(None, remedies), self.do)
