"""Checks of the machine of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from kdlab.checks.check import CodedCheck

_BUSY = 0.5  # load over cores


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Load of the machine before a run begins.

    load: mean number of computing processes in the last minute.
    cores: usable by this process.
    """

    load: float
    cores: int


class BusyMachine(CodedCheck[MachineFacts]):
    code = "KD-M01"
    title = "the machine is idle before the run"
    level = "tip"
    do = "Wait until it is, or treat measured speeds with care"

    def find(self, facts: MachineFacts) -> str | None:
        if facts.load <= _BUSY * facts.cores:
            return ""
        load = f"load {facts.load:.1f} on {facts.cores} cores"
        return f"{load}: speeds are measured on a busy machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Engines that teachers use, and those they refused, each with its reason."""

    engines: Sequence[str]
    refused: Sequence[str]

    @classmethod
    def from_reports(cls, reports: Iterable[str]) -> Self:
        """Facts from the reports of teachers (kdlab/models/engines/choose.py)."""
        parts = [part.split("; ") for part in reports]
        refused = [part for _, *more in parts for part in more if " refused: " in part]
        return cls(
            engines=[*dict.fromkeys(chosen.partition(" (")[0] for chosen, *_ in parts)],
            refused=[*dict.fromkeys(part for part in refused if "not tried" not in part)],
        )


class RefusedEngine(CodedCheck[EngineFacts]):
    code = "KD-M02"
    title = "no engine of a teacher was refused"
    level = "tip"
    do = "Nothing where it is fast enough; else set teacher_pool.engine"

    def find(self, facts: EngineFacts) -> str | None:
        if not facts.engines or not facts.refused:
            return "" if facts.engines else None
        return f"{'; '.join(facts.refused)}; used: {', '.join(facts.engines)}"
