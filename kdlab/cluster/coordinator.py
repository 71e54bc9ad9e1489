"""The Coordinator of EDL-Dist (section 3.1) as a plugin of the Dask scheduler.

Carries out the pure table of kdlab/papers/edl_dist/leases.py: calls become events with
the scheduler's own clock, changes wake the readers that watch. Teachers and readers talk
to each other directly; nothing of their data passes here.

Messages hold plain values only. The scheduler process needs no torch.
"""

import asyncio
import time
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from kdlab.papers.edl_dist.leases import LeaseTable

STUDENT_SILENT_S = 15.0  # a reader watches at least every 2 s
_TICK_MS = 250
_EXPIRED_TOLD = 100  # names of the last teachers that hung, for the reader's message
_BATCHES_PER_TTL = 4  # two are queued at a teacher, and one may be slow


class Coordinator(SchedulerPlugin):
    name = "kdlab-coordinator"
    idempotent = True  # two processes may install it at once; the first stays

    def __init__(
        self, ttl_s: float = 6.0, deployment: dict[str, Any] | None = None
    ) -> None:
        self.table = LeaseTable(ttl_s)
        self.deployment = deployment
        self.weights_file: bytes | None = None
        self.facts: dict[str, dict[str, Any]] = {}  # per teacher: pid, name, device
        self.left: set[str] = set()  # teachers that said goodbye: answers may still come
        self.expired: list[str] = []
        self.banned: dict[str, str] = {}  # teachers whose answers were unusable, and why
        self.students_seen: dict[str, float] = {}

    async def start(self, scheduler: Any) -> None:
        self.changed = asyncio.Event()
        scheduler.handlers.update(
            {
                "kdlab_deploy": self.deploy,
                "kdlab_hello": self.hello,
                "kdlab_weights": self.weights,
                "kdlab_ready": self.ready,
                "kdlab_renew": self.renew,
                "kdlab_leave": self.leave,
                "kdlab_demand": self.demand,
                "kdlab_extra": self.extra,
                "kdlab_release": self.release,
                "kdlab_give_back": self.give_back,
                "kdlab_complain": self.complain,
                "kdlab_watch": self.watch,
                "kdlab_student_gone": self.student_gone,
                "kdlab_status": self.status,
            }
        )
        self.ticker = PeriodicCallback(self.tick, _TICK_MS)
        self.ticker.start()

    async def close(self) -> None:
        self.ticker.stop()

    def _notify(self) -> None:
        """Wake every watcher; each looks whether its version grew."""
        self.changed.set()
        self.changed = asyncio.Event()

    # Teachers

    async def deploy(self, deployment: dict[str, Any], weights: bytes | None = None) -> str:
        """Publish what teachers are to serve; empty, or why not.

        Another deployment than before makes every teacher register and load again. While
        a student still holds teachers it is refused.
        """
        self.weights_file = weights
        before = (self.deployment or {}).get("fingerprint")
        if before not in (None, deployment["fingerprint"]):
            if self.table.demands:
                return (
                    f"the pool still serves {', '.join(self.table.demands)} with another "
                    "model or other data; wait for it, or use another pool"
                )
            for teacher in list(self.table.leases):
                self._lost(teacher)
            self.banned.clear()
        self.deployment = deployment
        self._notify()
        return ""

    async def hello(self, address: str, wait_s: float = 5.0) -> dict[str, Any] | None:
        """A teacher registers before it loads its model; told what to load, or None yet."""
        if address not in self.table.leases:
            self.table.on_registered(address, time.monotonic())
        else:
            self.table.on_renewed(address, time.monotonic())
        if self.deployment is None:
            await self._wait(wait_s)
        if self.deployment is None:
            return None
        return {"deployment": self.deployment, "renew_s": self.table.ttl_s / 4}

    async def weights(self) -> bytes:
        """The weights the run sent along, for a teacher that cannot read their path."""
        if self.weights_file is None:
            raise FileNotFoundError("the run sent no weights along: its pool is local")
        return self.weights_file

    async def ready(
        self,
        address: str,
        fingerprint: str,
        t_t: float,
        batch_s: float,
        facts: dict[str, Any],
    ) -> str:
        """Empty when the teacher is accepted, else why not."""
        if address in self.banned:
            return f"a student could not use its answers: {self.banned[address]}"
        wanted = (self.deployment or {}).get("fingerprint", "")
        if fingerprint != wanted:
            self.table.on_lost(address, time.monotonic())
            return (
                f"it serves model {fingerprint}, this pool serves {wanted or 'nothing yet'}"
            )
        self.facts[address] = facts
        self.left.discard(address)
        # Leases are renewed between batches: one that takes long must not look like a hang.
        ttl_s = max(self.table.ttl_s, _BATCHES_PER_TTL * batch_s)
        self.table.on_ready(address, t_t, time.monotonic(), ttl_s)
        self._notify()
        return ""

    async def renew(self, address: str, t_t: float, answered: int) -> bool:
        if address in self.facts:
            self.facts[address]["answered"] = answered
        return self.table.on_renewed(address, time.monotonic(), t_t)

    async def leave(self, address: str) -> None:
        self.left.add(address)
        self._lost(address)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Dask saw the connection break: the fast path, 0.01 s after a SIGKILL."""
        self._lost(worker)

    def _lost(self, address: str) -> None:
        if self.table.on_lost(address, time.monotonic()):
            self._notify()

    def tick(self) -> None:
        now = time.monotonic()
        for teacher in self.table.expired(now):
            self.expired.append(teacher)
            self._lost(teacher)
        for student, seen in list(self.students_seen.items()):
            if now - seen > STUDENT_SILENT_S:
                self._drop_student(student)

    # Students

    async def demand(self, student: str, t_s: float, at_most: int | None) -> None:
        self.students_seen[student] = time.monotonic()
        self.table.on_demand(student, t_s, time.monotonic(), at_most)
        self._notify()

    async def extra(self, student: str) -> bool:
        got = self.table.on_extra(student, time.monotonic())
        self._notify()
        return got

    async def release(self, student: str, teacher: str) -> None:
        self.table.on_release(student, teacher, time.monotonic())
        self._notify()

    async def give_back(self, student: str, teacher: str, lease: int) -> None:
        """A request failed on the way: the teacher is free, and may come under a new lease."""
        self.table.on_given_back(student, teacher, lease, time.monotonic())
        self._notify()

    async def complain(self, student: str, teacher: str, why: str) -> None:
        """A reader found a teacher's answers unusable: it is not handed out again."""
        self.banned[teacher] = why
        self._lost(teacher)

    async def student_gone(self, student: str) -> None:
        self._drop_student(student)

    def _drop_student(self, student: str) -> None:
        self.students_seen.pop(student, None)
        self.table.on_student_gone(student, time.monotonic())
        self._notify()

    async def watch(self, student: str, version: int, wait_s: float) -> dict[str, Any]:
        """The student's teachers, as soon as something is newer than `version`."""
        deadline = time.monotonic() + wait_s
        while self.table.version <= version and time.monotonic() < deadline:
            self.students_seen[student] = time.monotonic()
            await self._wait(min(1.0, deadline - time.monotonic()))
        self.students_seen[student] = time.monotonic()
        teachers = [
            {"address": le.teacher, "lease": le.epoch, "t_t": le.t_t}
            | self.facts.get(le.teacher, {})
            for le in self.table.held_by(student)
        ]
        known = student in self.table.demands
        return {
            "version": self.table.version,
            "known": known,
            "teachers": teachers,
            "left": sorted(self.left),
            "expired": self.expired[-_EXPIRED_TOLD:],
        }

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.changed.wait(), max(0.0, seconds))
        except TimeoutError:
            return  # nothing changed; the caller looks at the clock

    async def status(self) -> dict[str, Any]:
        """Everything there is to see: for waiting pools, `kdlab doctor` and tests."""
        now = time.monotonic()
        return {
            "deployed": (self.deployment or {}).get("fingerprint", ""),
            "expired": list(self.expired),
            "students": {d.student: d.t_s for d in self.table.demands.values()},
            "teachers": [
                {
                    "address": le.teacher,
                    "state": le.state,
                    "student": le.student,
                    "t_t": le.t_t,
                    "silent_s": now - le.renewed_at,
                    **self.facts.get(le.teacher, {}),
                }
                for le in self.table.leases.values()
            ],
        }


async def dask_setup(scheduler: Any) -> None:
    """`dask scheduler --preload kdlab.cluster.coordinator` makes it a coordinator."""
    plugin = Coordinator()
    scheduler.add_plugin(plugin)
    await plugin.start(scheduler)
