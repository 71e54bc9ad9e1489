"""Teachers with unusable answers are left out for a while, longer each time."""

from dataclasses import dataclass, field

_FIRST_S = 10.0  # doubles with each time
_LONGEST_S = 600.0
_FORGIVEN_S = 600.0  # without a complaint: one of the earlier ones is forgotten


@dataclass(frozen=True, slots=True)
class _LeftOut:
    until: float
    times: int
    why: str


@dataclass(slots=True)
class Quarantine:
    """Teachers by address, on the clock of whoever asks."""

    _left_out: dict[str, _LeftOut] = field(default_factory=dict)

    def put(self, teacher: str, why: str, now: float) -> None:
        """It is left out from now on; what was long ago counts no more."""
        before = self._left_out.get(teacher, _LeftOut(now, 0, ""))
        times = max(0, before.times - int((now - before.until) / _FORGIVEN_S))
        seconds = min(_LONGEST_S, _FIRST_S * 2.0 ** min(times, 10))
        self._left_out[teacher] = _LeftOut(now + seconds, times + 1, why[:300])

    def left(self, teacher: str, now: float) -> tuple[float, str]:
        """Seconds that it stays left out, 0 if it is not, and why."""
        found = self._left_out.get(teacher, _LeftOut(now, 0, ""))
        return max(0.0, found.until - now), found.why

    def clear(self) -> None:
        """Another model is served: what came before says nothing of it."""
        self._left_out.clear()
