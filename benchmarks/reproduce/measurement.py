"""Measurements of a reproduction on this machine, at the scale that fits it."""

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
    """Numbers, curves and pictures of a measurement.

    `curves` are to be drawn: points by panel, then by name. `seen` are curves of each seed, which
    are kept with the result. `facts` are for the result's card: seeds, hash of the spec.
    """

    values: Mapping[str, Sequence[float]]  # of repeats or seeds, by a row's `measured`
    undefined: Mapping[str, str] = field(default_factory=dict)  # reasons, by name
    seen: Mapping[str, Sequence[Points]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Points]] = field(default_factory=dict)
    pictures: Sequence[Path] = ()  # that the measurement drew
    facts: Mapping[str, Any] = field(default_factory=dict)


def missing_images(images: Sequence[str]) -> Iterator[Fault]:
    """Yield a fault if class folders or zips that a card names are not there."""
    missing = [path for path in images if not Path(path).expanduser().exists()]
    if missing:
        yield Fault("images", f"are not there: {', '.join(missing)}")


def roots_of(images: Sequence[str]) -> list[str]:
    """Return absolute paths, which are valid from any folder."""
    return [str(Path(path).expanduser().resolve()) for path in images]


class MeasurementSpec(Spec, ABC):
    """The source of the measured column of a reproduction."""

    @abstractmethod
    def measure(self, folder: Path, say: EmitLine) -> Measured:
        """Measure; pictures go into `folder`."""
