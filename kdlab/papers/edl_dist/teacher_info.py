"""What is known of a teacher by its own word; it travels as it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherInfo:
    """What a teacher says of itself.

    Attributes:
        name, pid, device, threads: for people.
        best_batch, min_batch: samples that it takes at once, at most, and should, at least.
        by_reference: whether it has loaded the data.
        here: share of the data that lies on its machine, 0 to 1; with each renewal.
        weights: sha256 of those it has, which other teachers may fetch.
        wire_port: where readers ask.
        engine: what computes, how fast, and what else was tried; for people.
        chaos: whether it obeys orders to cut its network.
        answered, queued: requests until now, and those that wait; with each renewal.
        shared: samples until now that were answered without computing, for another student had
            asked for the same.
    """

    name: str = ""
    pid: int = 0
    device: str = ""
    threads: int = 0
    best_batch: int = 0
    min_batch: int | None = None
    by_reference: bool = True
    here: float = 1.0
    weights: tuple[str, ...] | None = None
    wire_port: int = 0
    engine: str | None = None
    chaos: bool | None = None
    answered: int | None = None
    queued: int | None = None
    shared: int | None = None
