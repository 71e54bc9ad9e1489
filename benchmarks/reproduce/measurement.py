"""What a reproduction measures on this machine, at the scale that it has."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdlab.config import Fault
from kdlab.config.spec import Spec
from kdlab.report.chart import Points
from kdlab.report.figures import EmitLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found.

    `curves` are to be drawn over epochs: points by panel, then by name. `seen` are curves of each
    seed that are kept as they are. `facts` are for the result's card: seeds, hash of the spec.
    """

    values: Mapping[str, Sequence[float]]  # of repeats or seeds, by the name a row asks for
    undefined: Mapping[str, str] = field(
        default_factory=dict
    )  # why, of names without values
    seen: Mapping[str, Sequence[Points]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Points]] = field(default_factory=dict)
    pictures: Sequence[Path] = ()  # that were drawn on the way
    facts: Mapping[str, Any] = field(default_factory=dict)


def missing_images(images: Sequence[str]) -> Iterator[Fault]:
    """Class folders or zips that a card names and that are not there."""
    missing = [path for path in images if not Path(path).expanduser().exists()]
    if missing:
        yield Fault("images", f"are not there: {', '.join(missing)}")


def roots_of(images: Sequence[str]) -> list[str]:
    """The same from any folder."""
    return [str(Path(path).expanduser().resolve()) for path in images]


class MeasurementSpec(Spec, ABC):
    """How the measured column of a reproduction comes about."""

    @abstractmethod
    def measure(self, folder: Path, say: EmitLine) -> Measured:
        """Measure; pictures go into `folder`."""
