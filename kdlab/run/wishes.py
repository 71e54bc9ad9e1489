"""What somebody wants of an experiment that is chosen for them; imports nothing heavy."""

from dataclasses import dataclass

MINUTES = 5.0  # of a first run, if nobody says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What somebody wants; None is left to us.

    data: path or URL of photos.
    student, teacher: names or blocks of models.
    weights: file of the teacher's, which is then not trained.
    minutes: that a first run may take on this machine.
    """

    data: str
    student: object = None
    teacher: object = None
    weights: str | None = None
    minutes: float = MINUTES
