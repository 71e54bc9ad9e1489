"""What is kept of a training that goes on, for whoever goes back: without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kdlab.codec import Count, to_builtins
from kdlab.config.home import recall_as, write_json

_FILE = "way_back.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertPoint:
    """To the last checkpoint before somebody changed what the training goes by.

    before, values: the numbers that can be set, before that change and after it.
    good: number of that checkpoint, which is kept; 0 is none.
    best: epoch of the best student until then, whose weights are kept.
    gone: when it was asked for, in seconds since 1970, to go back as it was done last.
    """

    before: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    good: Count = 0
    best: int = -1
    gone: float = 0.0

    @classmethod
    def of(cls, folder: Path) -> "RevertPoint":
        return recall_as(cls, folder / _FILE, "What it says is forgotten.") or cls()

    def write(self, folder: Path) -> None:
        write_json(folder / _FILE, to_builtins(self))

    def changed(
        self, begin: Mapping[str, float], values: Mapping[str, float], good: int, best: int
    ) -> "RevertPoint":
        """After another change; what takes the last one back leaves the way as it is."""
        before = self.values or begin
        if values in (before, self.before):
            return replace(self, values=values)
        return replace(self, before=before, values=values, good=good, best=best)


def steps(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = [
        path
        for path in folder.glob("step_*")
        if path.is_dir() and path.name.removeprefix("step_").isdecimal()
    ]
    return sorted(found, key=step_of)  # numbers: a name may have ten digits


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def place(member: Path) -> Path:
    """Where the checkpoints of a member lie that trains now: of its blocks, or of the whole."""
    whole = member / "whole" / "checkpoints"
    return whole if steps(whole) else member / "checkpoints"
