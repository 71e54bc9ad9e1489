"""Events of the few test images that are looked at again and again while a run trains."""

from kdlab.events.event import Event


class ImagesChosen(Event):
    """The images that every network of the run is asked about, the same for all."""

    path: str  # of a picture that has them beside each other
    side: int  # pixels of one in it
    labels: list[str]  # classes they are of


class ImagesAnswered(Event):
    """What a network says of them; `member` is the training, or "teacher"."""

    step: int  # that is done; 0 of a teacher
    epoch: int  # counted from 1; 0 of a teacher
    said: list[str]  # likeliest class of each image
    shares: list[float]  # its probability, percent
