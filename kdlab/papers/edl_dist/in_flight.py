"""Every batch of soft labels once: at-least-once work, exactly-once delivery.

Section 3.4 of EDL-Dist, the three ways a teacher is lost:
    case 1  before it was scheduled            nothing is in flight, nothing to do
    case 2  scheduled, nothing in flight       nothing to re-send
    case 3  scheduled, an answer is awaited    its tasks are sent to another teacher

A task is one batch. It is WAITING, then SENT to a teacher under that teacher's lease
epoch, then DONE. A late answer (of a teacher given up on, or to a task answered by
somebody else) is dropped by task id and lease epoch.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

TaskId = tuple[int, int]  # (epoch of training, index of the batch in it)


@dataclass(frozen=True, slots=True)
class Sent:
    teacher: str
    lease: int  # lease epoch of the teacher when it was sent
    attempt: int  # 1 for the first time
    time: float


@dataclass(slots=True)
class InFlight:
    """Mutable, but pure: its state depends on the calls alone."""

    limit: int = 2  # tasks per teacher: one computed, one queued hides the way there
    sizes: dict[TaskId, int] = field(default_factory=dict)  # samples of open tasks
    again: deque[TaskId] = field(default_factory=deque)  # lost, to be sent first
    sent: dict[TaskId, Sent] = field(default_factory=dict)
    attempts: dict[TaskId, int] = field(default_factory=dict)
    resends: int = 0
    late_answers: int = 0

    @property
    def samples(self) -> int:
        """Samples that are out or wait to be sent again."""
        return sum(self.sizes.values())

    def load(self, teacher: str) -> int:
        return sum(1 for s in self.sent.values() if s.teacher == teacher)

    def pick(self, teachers: Iterable[str]) -> str | None:
        """The teacher with the fewest tasks, None if all are at their limit."""
        loads = [(self.load(name), name) for name in teachers]
        free = [entry for entry in loads if entry[0] < self.limit]
        return min(free)[1] if free else None

    def next_again(self) -> TaskId | None:
        return self.again[0] if self.again else None

    def on_sent(
        self, task: TaskId, size: int, teacher: str, lease: int, time: float
    ) -> None:
        if task in self.sent:
            raise ValueError(f"task {task} is out already, with {self.sent[task]}")
        if self.again and self.again[0] == task:
            self.again.popleft()
        self.sizes[task] = size
        attempt = self.attempts[task] = self.attempts.get(task, 0) + 1
        self.sent[task] = Sent(teacher, lease, attempt, time)

    def on_answer(self, task: TaskId, teacher: str, lease: int) -> bool:
        """Whether to deliver: True exactly once per task."""
        out = self.sent.get(task)
        if out is None or (out.teacher, out.lease) != (teacher, lease):
            self.late_answers += 1
            return False
        del self.sent[task], self.sizes[task], self.attempts[task]
        return True

    def on_teacher_lost(self, teacher: str, lease: int) -> int:
        """Case 3 (or 2, when the answer is 0): how many tasks must be sent again.

        Only what was sent under that lease epoch: the teacher may have come back since.
        """
        lost = [
            task
            for task, out in self.sent.items()
            if (out.teacher, out.lease) == (teacher, lease)
        ]
        self._take_back(lost)
        return len(lost)

    def _take_back(self, tasks: list[TaskId]) -> None:
        for task in tasks:
            del self.sent[task]
        self.again = deque(sorted({*self.again, *tasks}))  # oldest first
        self.resends += len(tasks)
