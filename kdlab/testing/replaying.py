"""Replay the recorded events of a machine of kdlab/papers, without any process."""

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
    """An event to which a machine gives another output than it did."""

    number: int  # of the event in the journal
    on: str  # name of the event's method
    then: object  # recorded output
    now: object  # output of the replay


@dataclass(slots=True)
class Replay:
    """Result of a replay.

    delivered: batches handed to the trainer, (epoch, batch), in order; of a reader.
    different: the first event with another output than recorded; None where all are equal.
    """

    machine: DistilReader | LeaseTable  # in its last state
    events: Counter[str] = field(default_factory=Counter)  # how often each happened
    delivered: list[tuple[int, int]] = field(default_factory=list)
    different: Difference | None = None

    def check(self) -> None:
        """Raise AssertionError where an event has another output than recorded."""
        if self.different is not None:
            raise AssertionError(
                f"event {self.different.number} ({self.different.on}) led to\n"
                f"  then: {self.different.then}\n  now:  {self.different.now}"
            )


def replay(path: str | Path) -> Replay:
    """Feed the events of a journal to a fresh machine and compare its outputs.

    Journals are `reader.jsonl` of a member (soft_labels.record=true, or a run with chaos)
    and `pool/coordinator.jsonl` of a run. A restarted process continues its journal; then only
    the events since the last start are replayed.

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
    result = Replay(_machine(head, cached))
    for number, entry in enumerate(events):
        cached.clear()
        cached.update(_taken_from_cache(entry["told"]))
        _feed(result, number, entry)
        if result.different is not None:
            break
    return result


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


def _taken_from_cache(output: object) -> set[tuple[int, int]]:
    listed = output if isinstance(output, list) else []
    taken = [i for i in listed if isinstance(i, dict) and i.get("kind") == TakeCached.KIND]
    return {tuple(i["part"][:2]) for i in taken}


def _feed(result: Replay, number: int, entry: dict[str, Any]) -> None:
    machine, on = result.machine, entry["on"]
    call = getattr(machine, on)
    arguments = signature(call).bind(*entry["args"], **entry["kwargs"]).arguments
    hints = get_type_hints(call)
    output = call(
        **{name: from_builtins(hints[name], value) for name, value in arguments.items()}
    )
    result.events[on] += 1
    now: object = json.loads(json.dumps(to_builtins(output)))
    then = entry["told"]
    if isinstance(machine, LeaseTable):
        then = [then, entry["state"]]
        now = [now, [machine.version, machine.next_epoch]]
    if now != then:
        result.different = Difference(number, on, then, now)
    for instruction in output if isinstance(output, list) else []:
        if isinstance(instruction, Deliver):
            result.delivered.append((instruction.epoch, instruction.batch))
