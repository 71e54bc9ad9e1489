"""Checks of the machine that a run is on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from kdlab.checks.check import CodedCheck

_BUSY = 0.5  # load over cores


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """How busy it is before a run begins.

    load: processes that computed in the last minute, mean.
    cores: that may be used.
    """

    load: float
    cores: int


class BusyMachine(CodedCheck[MachineFacts]):
    code = "KD-M01"
    title = "the machine has nothing else to do"
    level = "tip"
    do = "Wait until it has, or read speeds with that in mind"

    def find(self, facts: MachineFacts) -> str | None:
        if facts.load <= _BUSY * facts.cores:
            return ""
        load = f"load {facts.load:.1f} on {facts.cores} cores"
        return f"{load}: what is measured is of a busy machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What teachers compute with, and what they tried and may not use, each with why."""

    engines: Sequence[str]
    refused: Sequence[str]

    @classmethod
    def of(cls, words: Iterable[str]) -> Self:
        """From what teachers say themselves (kdlab/models/engines/choose.py)."""
        parts = [one.split("; ") for one in words]
        refused = [one for _, *others in parts for one in others if " refused: " in one]
        return cls(
            engines=[*dict.fromkeys(chosen.partition(" (")[0] for chosen, *_ in parts)],
            refused=[*dict.fromkeys(one for one in refused if "not tried" not in one)],
        )


class RefusedEngine(CodedCheck[EngineFacts]):
    code = "KD-M02"
    title = "no engine of a teacher was refused"
    level = "tip"
    do = "Nothing, if it is quick enough; else a teacher_pool.engine that is named"

    def find(self, facts: EngineFacts) -> str | None:
        if not facts.engines or not facts.refused:
            return "" if facts.engines else None
        return f"{'; '.join(facts.refused)}; used: {', '.join(facts.engines)}"
