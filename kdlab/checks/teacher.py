"""Checks of a teacher before it teaches."""

from dataclasses import dataclass

from kdlab.checks.check import CodedCheck
from kdlab.report.verdict import guessed

_SURE = 10.0  # points of confidence above the accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherMeasure:
    """A teacher on images with labels; percent."""

    split: str  # "test"
    images: int
    top1: float
    top5: float  # of min(5, classes) classes
    guessing: float  # top-1 of always predicting the most frequent class
    calibration_error: float  # mean distance of confidence and accuracy
    confidence: float  # mean of the largest probability
    per_class: dict[str, float]  # top-1 of each class that has images
    validation_top1: float | None  # None: there are no validation images
    validation_f1: dict[str, float]  # of each class that has images there
    renamed: dict[str, str]  # class -> class that its predictions fit
    taken_for: list[str]  # a phrase with its count for each of these
    said: list[str]  # a key of JSON: likeliest class of each watched image
    shares: list[float]  # its probability

    @property
    def knows_nothing(self) -> bool:
        """True where guessing would be as good."""
        return self.top1 < guessed(self.guessing, self.images)

    @property
    def doubt(self) -> str:
        """Advice on a possible fault of its classes, with the setting that corrects it."""
        if not self.renamed:
            return "Are its classes these, in this order, and its images normalised so?"
        more = len(self.taken_for) - 4
        often = ", ".join(self.taken_for[:4]) + (f" and {more} more" if more > 0 else "")
        names = ", ".join(f"{a}: {b}" for a, b in self.renamed.items())
        return (
            f"It takes {often}: its classes may be in another order. If so, "
            f"set teacher.classes={{{names}}}."
        )


class TeacherKnowsNothing(CodedCheck[TeacherMeasure]):
    code = "KD-T01"
    title = "the teacher knows more than a guess"
    do = "Correct its weights, classes or normalisation (model.mean, model.std)"

    def find(self, facts: TeacherMeasure) -> str | None:
        if not facts.knows_nothing:
            return ""
        return (
            f"the teacher knows no more of this data than a guess: {facts.top1:.1f} % top-1 on "
            f"{facts.images:,} {facts.split} images, and saying the commonest class is right in "
            f"{facts.guessing:.1f} %"
        )

    def advice(self, facts: TeacherMeasure) -> str:
        return facts.doubt


class ExchangedClasses(CodedCheck[TeacherMeasure]):
    code = "KD-T02"
    title = "the teacher's classes are in the order of the data's"
    do = "Name its classes in their order: teacher.classes"

    def find(self, facts: TeacherMeasure) -> str | None:
        if facts.knows_nothing and not facts.renamed:
            return None
        return "some of the teacher's classes look exchanged" if facts.renamed else ""

    def advice(self, facts: TeacherMeasure) -> str:
        return facts.doubt


class OverconfidentTeacher(CodedCheck[TeacherMeasure]):
    code = "KD-T03"
    title = "the teacher's confidence matches its accuracy"
    level = "tip"
    do = "A higher loss.temperature, such as 4"

    def find(self, facts: TeacherMeasure) -> str | None:
        if facts.knows_nothing:
            return None
        if facts.confidence <= facts.top1 + _SURE:
            return ""
        return (
            f"the teacher gives its likeliest class {facts.confidence:.0f} % on average and is "
            f"right in {facts.top1:.0f} % of {facts.images:,} {facts.split} images"
        )
