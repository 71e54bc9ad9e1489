"""Checkpoints of a running training and the point to go back to, without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kdlab.codec import Count, to_builtins
from kdlab.config.home import recall_as, write_json

_FILE = "way_back.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertPoint:
    """Last checkpoint before a user changed values of the training.

    before, values: all tunables before that change and after it.
    good: step of that checkpoint, which is kept; 0 is none.
    best: epoch of the best student until then, whose weights are kept.
    gone: time of the last request to go back that was carried out, in seconds since 1970.
    """

    before: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    good: Count = 0
    best: int = -1
    gone: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> "RevertPoint":
        return recall_as(cls, folder / _FILE, "What it says is forgotten.") or cls()

    def write(self, folder: Path) -> None:
        write_json(folder / _FILE, to_builtins(self))

    def changed(
        self, begin: Mapping[str, float], values: Mapping[str, float], good: int, best: int
    ) -> "RevertPoint":
        """Return the point after another change; undoing the last one leaves it as it is."""
        before = self.values or begin
        if values in (before, self.before):
            return replace(self, values=values)
        return replace(self, before=before, values=values, good=good, best=best)


def steps(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, oldest first."""
    folders = [
        path
        for path in folder.glob("step_*")
        if path.is_dir() and path.name.removeprefix("step_").isdecimal()
    ]
    return sorted(folders, key=step_of)  # numbers: a name may have ten digits


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def place(member: Path) -> Path:
    """Return the current folder of a member's checkpoints: of its blocks or the whole network."""
    network = member / "whole" / "checkpoints"  # of training after blocks
    return network if steps(network) else member / "checkpoints"
