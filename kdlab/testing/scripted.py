"""Scripted stand-ins for tests: a child process, and a clock.

The supervisor (`kdlab.supervision.supervisor`) needs little of its children, and its decisions
depend on time; with these two it is tested without a process and without waiting.
"""

from dataclasses import dataclass, field

from kdlab.supervision.heartbeat import Heartbeat


@dataclass(slots=True)
class FakeClock:
    """A clock that a test advances: `clock()`, `clock.advance(3)`."""

    now: float = 0.0  # seconds

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(slots=True)
class ScriptedChild:
    """A `kdlab.supervision.children.RankChild` without a process.

    A test calls `say`, `die` and `beat`; `orders` has the orders that were sent to it.
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
        """Announce a message, which `messages` returns next."""
        self._says.append(message)

    def die(self, code: int = -9) -> None:
        """End with an exit code; messages from before are still returned."""
        self._dead, self.exit_code = True, code

    def beat(self, generation: int, step: int, time: float) -> None:
        """Send a heartbeat."""
        self.heartbeat = Heartbeat(generation, step, time)

    # For the supervisor

    def messages(self) -> list[dict[str, object]]:
        messages, self._says = self._says, []
        return messages

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
