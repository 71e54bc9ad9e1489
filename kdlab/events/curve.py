"""Curves of any length in little memory, for pictures of a few hundred pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

_MAX = 1200  # points; beyond it, each two neighbours are averaged
CurveKey = tuple[str, str, str]  # panel, curve, and run where there are several
CurvePoint = tuple[float, ...]  # x, alternative x values, y
CurvePoints = list[tuple[float, float]]


@dataclass(slots=True)
class Curve:
    """Points in order of arrival; x never falls.

    When there are too many, each two neighbours become their mean, also of later points: a curve
    of 36,000 points keeps 600 to 1,200, evenly spread.
    """

    points: list[CurvePoint] = field(default_factory=list)
    stride: int = 1  # points that are averaged into one
    _pending: list[CurvePoint] = field(default_factory=list)

    def add(self, *point: float) -> None:
        self._pending.append(point)
        if len(self._pending) < self.stride:
            return
        self.points.append(_mean(self._pending))
        self._pending.clear()
        if len(self.points) >= _MAX:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_mean(list(pair)) for pair in pairs]
            self.stride *= 2

    def undo(self, after: float, until: float = inf) -> bool:
        """Remove points with `after` < x <= `until`; return whether there were any."""
        before = len(self)
        for points in (self.points, self._pending):
            points[:] = [point for point in points if not after < point[0] <= until]
        return len(self) < before

    @property
    def last(self) -> CurvePoint | None:
        """The newest point."""
        newest = self._pending or self.points
        return newest[-1] if newest else None

    def over(self, column: int) -> CurvePoints:
        """All points, the newest included, as (value of this column, y)."""
        points = [*self.points, *([_mean(self._pending)] if self._pending else [])]
        return [(point[column], point[-1]) for point in points]

    def __iter__(self) -> Iterator[tuple[float, float]]:
        yield from self.over(0)

    def __len__(self) -> int:
        return len(self.points) + bool(self._pending)


def thinned(points: CurvePoints, most: int = 400) -> CurvePoints:
    """Average neighbours until at most `most` points are left; keep the last one."""
    size = -(-len(points) // most)
    if size <= 1:
        return points
    means = [_mean(points[k : k + size]) for k in range(0, len(points), size)]
    return [*((x, y) for x, y in means[:-1]), points[-1]]


def _mean(points: Sequence[CurvePoint]) -> CurvePoint:
    return tuple(sum(column) / len(points) for column in zip(*points, strict=True))
