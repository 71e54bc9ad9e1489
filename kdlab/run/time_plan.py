"""Plan of epochs and views for a time limit, never fewer than a training needs."""

from dataclasses import dataclass
from math import ceil
from typing import Literal

_BATCH = 64
_ENOUGH, _MOST = 15, 300  # epochs of a student from scratch
_STEPS, _MOST_STEPS = 600, 3000  # of a student from scratch, at least and at most
_ENOUGH_TUNED, _MOST_TUNED = 5, 15  # epochs of a student from published weights
_TEACHERS_ENOUGH, _TEACHERS_MOST = 20, 200
_TEACHERS_SHARE = 0.6  # of the time: it is trained once and kept
FEW = 1000  # images of a set so small that a student memorises its views, too
# Epochs for each view that a slow teacher answers once, if there is no time for more views. With
# 320 mixed photos a student reached 54.8 % by 16 views (200 epochs), 58.1 % by 40 (200), 61.0 % by
# 120 (240), 56.9 % alone; with 2,000 72.9 % by 5 views in 26 epochs, 74.6 % by 3 in 40.
_EPOCHS_A_VIEW = {"few": 2, "many": 12}
_PROBE_S = 10.0  # of the regression on a teacher's hidden states


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWork:
    """The work of comparing a student without and with its teacher.

    images: number of training images.
    trained: samples/s of the student's steps.
    asked: samples/s of the teacher's answers.
    taught: samples/s of the teacher's training steps.
    teacher: `probe` trains its last layer only, `scratch` and `tuned` train all, `ready` nothing.
    tuned: true where the student starts from published weights.
    cached: true where the teacher answers some views of each image once, and these are kept.
    """

    images: int
    trained: float
    asked: float
    taught: float
    teacher: Literal["probe", "scratch", "tuned", "ready"]
    tuned: bool = False
    cached: bool = False

    @property
    def least(self) -> int:
        """Least epochs of the student."""
        if self.tuned:
            return _ENOUGH_TUNED
        return max(_ENOUGH, ceil(_STEPS * _BATCH / self.images))

    @property
    def most(self) -> int:
        if self.tuned:
            return _MOST_TUNED
        return max(self.least, min(_MOST, _MOST_STEPS * _BATCH // self.images))


@dataclass(frozen=True, slots=True)
class TimePlan:
    epochs: int  # of the student
    teacher_epochs: int  # 0: it is not trained
    views: int  # of each image, answered once; 0: new views in each epoch
    seconds: float


def time_plan(work: TimedWork, seconds: float) -> TimePlan:
    """Return the largest plan that fits into `seconds`, or the smallest useful one."""
    trains = work.teacher in ("scratch", "tuned")
    share = 1 - _TEACHERS_SHARE if trains else 1.0
    epochs = work.least
    while epochs < work.most and _seconds(work, epochs + 1, 0) <= share * seconds:
        epochs += 1
    teacher_epochs = 0
    if trains:
        tuned = work.teacher == "tuned"
        least, most = (
            (_ENOUGH_TUNED, _MOST_TUNED) if tuned else (_TEACHERS_ENOUGH, _TEACHERS_MOST)
        )
        left = (seconds - _seconds(work, epochs, 0)) * work.taught / work.images
        teacher_epochs = max(least, min(most, int(left)))
    views = _views(work, epochs)
    if views:  # the remaining time goes to the teacher
        left = seconds - _seconds(work, epochs, teacher_epochs)
        views += max(0, min(epochs - views, int(left * work.asked / work.images)))
    taken = _seconds(work, epochs, teacher_epochs, views)
    return TimePlan(epochs, teacher_epochs, views, taken)


def _views(work: TimedWork, epochs: int) -> int:
    """Least number of cached views; 0: none is cached."""
    each = _EPOCHS_A_VIEW["few" if work.images <= FEW else "many"]
    return max(2, epochs // each) if work.cached else 0


def _seconds(work: TimedWork, epochs: int, teacher_epochs: int, views: int = 0) -> float:
    answers = views or _views(work, epochs) or epochs
    if work.teacher == "probe":
        answers += 1  # of its training images
    each = 2 * epochs / work.trained + answers / work.asked + teacher_epochs / work.taught
    return work.images * each + (_PROBE_S if work.teacher == "probe" else 0.0)
