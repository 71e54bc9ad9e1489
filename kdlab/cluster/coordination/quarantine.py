"""Quarantine of teachers with unusable answers, longer each time."""

from dataclasses import dataclass, field

_FIRST_S = 10.0  # doubles with each time
_LONGEST_S = 600.0
_FORGIVEN_S = 600.0  # without a complaint: one earlier complaint is forgotten


@dataclass(frozen=True, slots=True)
class _Entry:
    until: float
    times: int
    why: str


@dataclass(slots=True)
class Quarantine:
    """Quarantined teachers by address, on the caller's clock."""

    _entries: dict[str, _Entry] = field(default_factory=dict)

    def put(self, teacher: str, why: str, now: float) -> None:
        """Quarantine a teacher from now on; old complaints no longer count."""
        before = self._entries.get(teacher, _Entry(now, 0, ""))
        times = max(0, before.times - int((now - before.until) / _FORGIVEN_S))
        seconds = min(_LONGEST_S, _FIRST_S * 2.0 ** min(times, 10))
        self._entries[teacher] = _Entry(now + seconds, times + 1, why[:300])

    def left(self, teacher: str, now: float) -> tuple[float, str]:
        """Seconds until the quarantine of a teacher ends, 0 without one, and its reason."""
        entry = self._entries.get(teacher, _Entry(now, 0, ""))
        return max(0.0, entry.until - now), entry.why

    def clear(self) -> None:
        """Release all teachers, because the pool serves another model."""
        self._entries.clear()
