"""Events of the few test images whose predictions are shown while a run trains."""

from kdlab.events.event import Event


class ImagesChosen(Event):
    """The images that all networks of the run classify."""

    path: str  # of a picture that has them beside each other
    side: int  # pixels of each in it
    labels: list[str]  # their classes


class ImagesAnswered(Event):
    """Predictions of a network for these images; `member` is the training, or "teacher"."""

    step: int  # last finished step; 0 of a teacher
    epoch: int  # counted from 1; 0 of a teacher
    said: list[str]  # likeliest class of each image  # a key of JSON
    shares: list[float]  # its probability, percent
