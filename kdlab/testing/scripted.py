"""Stand-ins that do what a test says: a child process, and a clock.

What watches children (`kdlab.supervision.supervisor`) asks little of them, and what it decides
depends on time; with these two it is tested without a process and without waiting.
"""

from dataclasses import dataclass, field

from kdlab.supervision.heartbeat import Heartbeat


@dataclass(slots=True)
class FakeClock:
    """Seconds that pass when they are told to: `clock()`, `clock.advance(3)`."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(slots=True)
class ScriptedChild:
    """A rank's process that is none (`kdlab.supervision.children.RankChild`).

    `say` and `die` are what it does next; `orders` is what it was sent.
    """

    pid: int = 1
    machine: str = "here"
    exit_code: int | None = None
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(0, 0, 0.0))
    stopped: bool = False
    orders: list[dict[str, object]] = field(default_factory=list)
    _says: list[dict[str, object]] = field(default_factory=list)
    _dead: bool = False

    def say(self, **message: object) -> None:
        """What it announces; heard at the next look."""
        self._says.append(message)

    def die(self, code: int = -9) -> None:
        """It ends; what it said before is heard still."""
        self._dead, self.exit_code = True, code

    def beat(self, generation: int, step: int, time: float) -> None:
        """A sign of life."""
        self.heartbeat = Heartbeat(generation, step, time)

    # What a supervisor asks

    def messages(self) -> list[dict[str, object]]:
        found, self._says = self._says, []
        return found

    def send(self, **order: object) -> bool:
        self.orders.append(order)
        return not self._dead

    def alive(self) -> bool:
        return not self._dead

    def sign(self) -> Heartbeat:
        return self.heartbeat

    def is_stopped(self) -> bool:
        return self.stopped

    def kill(self) -> None:
        self.die()

    def exit_report(self, what: str) -> str:
        return f"it {what} (exit code {self.exit_code})"

    def stop(self, timeout_s: float = 5.0) -> None:
        self.die(0)
