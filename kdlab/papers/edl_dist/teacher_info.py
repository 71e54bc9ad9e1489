"""Facts that a teacher states of itself, in the form in which they cross the wire."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherInfo:
    """Facts that a teacher states of itself (3.1: the "register information").

    Attributes:
        name, pid, device, threads: for people.
        best_batch, min_batch: largest and smallest request, in samples.
        by_reference: True where it has loaded the data, so that ids suffice as inputs (the
            journal names this as future work in section 5).
        here: share of the data on its machine, 0 to 1; with each renewal.
        weights: sha256 of its weights files, which other teachers may fetch.
        wire_port: port for requests of readers.
        engine: the inference engine, its rate, and the engines that were tried; for people.
        chaos: True where it obeys orders to cut its network.
        answered, queued: requests until now, and those that wait; with each renewal.
        shared: samples answered until now without computing, since another student had asked
            for the same ones.
    """

    name: str = ""
    pid: int = 0
    device: str = ""
    threads: int = 0
    best_batch: int = 0
    min_batch: int | None = None
    by_reference: bool = True
    here: float = 1.0  # a key of JSON
    weights: tuple[str, ...] | None = None
    wire_port: int = 0
    engine: str | None = None
    chaos: bool | None = None
    answered: int | None = None
    queued: int | None = None
    shared: int | None = None
