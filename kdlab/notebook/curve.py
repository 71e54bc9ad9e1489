"""A curve of any length in little memory, for a picture of a few hundred pixels."""

from collections.abc import Iterator
from dataclasses import dataclass, field

_MAX = 1200  # points; then neighbours become one
CurveKey = tuple[str, str, str]  # panel, curve, and run where there are several


@dataclass(slots=True)
class Curve:
    """Points in the order they came; x never falls.

    When there are too many, each two neighbours become their mean, and so do those that
    come after: a curve of 36,000 points has 600 to 1,200, evenly spread.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    stride: int = 1  # points that become one
    _pending: list[tuple[float, float]] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        self._pending.append((x, y))
        if len(self._pending) < self.stride:
            return
        self.points.append(_mean(self._pending))
        self._pending.clear()
        if len(self.points) >= _MAX:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_mean(list(pair)) for pair in pairs]
            self.stride *= 2

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """All, the newest included."""
        yield from self.points
        if self._pending:
            yield _mean(self._pending)

    def __len__(self) -> int:
        return len(self.points) + bool(self._pending)


def _mean(points: list[tuple[float, float]]) -> tuple[float, float]:
    return (
        sum(x for x, _ in points) / len(points),
        sum(y for _, y in points) / len(points),
    )
