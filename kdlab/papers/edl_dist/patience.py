"""How long to wait for a teacher, and how long to leave one alone that failed.

Beyond the paper, whose students wait for the TTL alone (and whose released code waits
for ever: no deadline on a call, and a broken teacher is asked again at once).

A request's deadline comes from its own teacher's latency, so a slow teacher is not taken
for a hung one. Passing it costs nothing but a second request elsewhere (a hedge, once);
only `give_up_s` ends the teacher's lease. A teacher that failed is left alone for
1, 2, 4 ... seconds.
"""

from dataclasses import dataclass, field

_NEW = 0.2  # weight of the newest latency in the running mean


@dataclass(slots=True)
class Patience:
    give_up_s: float = 30.0  # for one request: then the teacher is given up
    floor_s: float = 1.0  # no deadline is shorter: schedulers and collectors pause too
    factor: float = 5.0  # times the teacher's own mean latency
    back_off_s: float = 1.0
    longest_back_off_s: float = 60.0
    latency: dict[str, float] = field(default_factory=dict)  # s, mean, by teacher
    failures: dict[str, int] = field(default_factory=dict)  # in a row

    def deadline_s(self, teacher: str) -> float:
        """After so long, the same part is asked of a second teacher too."""
        known = self.latency.get(teacher)
        if known is None:  # the first answer may include warming up
            return min(self.give_up_s, 5 * self.floor_s)
        return min(self.give_up_s, max(self.floor_s, self.factor * known))

    def on_answer(self, teacher: str, seconds: float) -> None:
        before = self.latency.get(teacher, seconds)
        self.latency[teacher] = before + _NEW * (seconds - before)
        self.failures.pop(teacher, None)

    def on_failure(self, teacher: str) -> float:
        """Seconds to leave it alone."""
        count = self.failures[teacher] = self.failures.get(teacher, 0) + 1
        return min(self.longest_back_off_s, self.back_off_s * 2.0 ** (count - 1))

    def forget(self, teacher: str) -> None:
        """It is gone for good; whoever comes at that address is another."""
        self.latency.pop(teacher, None)
        self.failures.pop(teacher, None)
