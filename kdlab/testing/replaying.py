"""Replay what a machine of kdlab/papers lived through, without any process."""

import json
from collections import Counter
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

from kdlab.cluster.coordination.recording import FORMAT
from kdlab.codec import from_builtins, to_builtins
from kdlab.errors import BadInput
from kdlab.events.log import LineReader
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.leases import LeaseTable
from kdlab.papers.edl_dist.reader_instructions import Deliver, TakeCached
from kdlab.papers.edl_dist.reader_rules import Rules


@dataclass(frozen=True, slots=True)
class Difference:
    """What a machine said to an event, and what it says now."""

    number: int
    on: str
    then: object
    now: object


@dataclass(slots=True)
class Replay:
    """What came of it.

    delivered: batches handed to the trainer, (epoch, batch), in order; of a reader.
    different: the first event to which the machine says something else now, with what it
        said then and now; None when all are alike.
    """

    machine: DistilReader | LeaseTable  # in its last state
    events: Counter[str] = field(default_factory=Counter)  # how often each happened
    delivered: list[tuple[int, int]] = field(default_factory=list)
    different: Difference | None = None

    def check(self) -> None:
        """Raise AssertionError when an event leads to something else than it did."""
        if self.different is not None:
            raise AssertionError(
                f"event {self.different.number} ({self.different.on}) led to\n"
                f"  then: {self.different.then}\n  now:  {self.different.now}"
            )


def replay(path: str | Path) -> Replay:
    """Feed the events of a journal to a fresh machine and compare what it says.

    Journals are `reader.jsonl` of a member (soft_labels.record=true, or a run with chaos)
    and `pool/coordinator.jsonl` of a run. A journal that a restarted process went on with
    holds several lives; the last one is replayed.

    Raises:
        BadInput: it is no journal.
    """
    entries = LineReader(Path(path))()
    heads = [i for i, entry in enumerate(entries) if "machine" in entry]
    if not heads:
        raise BadInput(f"{path} is no journal of a machine: no line names one.")
    head, events = entries[heads[-1]], entries[heads[-1] + 1 :]
    if head.get("format") != FORMAT:
        raise BadInput(f"{path} is of another kdlab: replay it with the one that wrote it.")
    cached: set[tuple[int, int]] = set()
    made = Replay(_machine(head, cached))
    for number, entry in enumerate(events):
        cached.clear()
        cached.update(_taken_from_cache(entry["told"]))
        _feed(made, number, entry)
        if made.different is not None:
            break
    return made


def _machine(
    head: dict[str, Any], cached: set[tuple[int, int]]
) -> DistilReader | LeaseTable:
    if head["machine"] == "LeaseTable":
        return LeaseTable(head["ttl_s"], next_epoch=head["next_epoch"])
    first, later = head["sizes"]
    return DistilReader(
        Rules(**head["rules"]),
        lambda epoch: first if epoch == head["epoch"] else later,
        epochs=head["epochs"],
        epoch=head["epoch"],
        done=head["done"],
        time=head["time"],
        cached=lambda epoch, batch: (epoch, batch) in cached,
    )


def _taken_from_cache(told: object) -> set[tuple[int, int]]:
    said = told if isinstance(told, list) else []
    taken = [i for i in said if isinstance(i, dict) and i.get("kind") == TakeCached.KIND]
    return {tuple(i["part"][:2]) for i in taken}


def _feed(made: Replay, number: int, entry: dict[str, Any]) -> None:
    machine, on = made.machine, entry["on"]
    call = getattr(machine, on)
    given = signature(call).bind(*entry["args"], **entry["kwargs"]).arguments
    hints = get_type_hints(call)
    told = call(
        **{name: from_builtins(hints[name], value) for name, value in given.items()}
    )
    made.events[on] += 1
    now: object = json.loads(json.dumps(to_builtins(told)))
    then = entry["told"]
    if isinstance(machine, LeaseTable):
        then = [then, entry["state"]]
        now = [now, [machine.version, machine.next_epoch]]
    if now != then:
        made.different = Difference(number, on, then, now)
    for instruction in told if isinstance(told, list) else []:
        if isinstance(instruction, Deliver):
            made.delivered.append((instruction.epoch, instruction.batch))
