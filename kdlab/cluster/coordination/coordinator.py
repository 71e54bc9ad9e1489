"""The Coordinator of EDL-Dist (section 3.1) as a plugin of the Dask scheduler.

Carries out the pure table of kdlab/papers/edl_dist/leases.py: calls become events with
the scheduler's own clock, changes wake the readers they concern. Teachers and readers
talk to each other directly; nothing of their data passes here.

Messages hold plain values only. The scheduler process needs no torch.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from kdlab.cluster.coordination.change_notifier import ChangeNotifier
from kdlab.cluster.coordination.coordinator_messages import (
    Deployed,
    PoolStatus,
    Refusal,
    StudentStatus,
    TeacherStatus,
    Welcome,
    amount,
    believed,
    serves_others,
)
from kdlab.cluster.coordination.lease_store import (
    POOL,
    STUDENTS,
    TEACHERS,
    THE_POOL,
    LeaseStore,
    PoolRow,
    StoredRows,
    StudentRow,
    make_store,
)
from kdlab.cluster.coordination.metrics import OF_READERS, PoolMetrics, can_be_shown
from kdlab.cluster.coordination.quarantine import Quarantine
from kdlab.cluster.coordination.recording import Recorded
from kdlab.cluster.coordination.weights_cache import WeightsCache
from kdlab.cluster.teachers.probe import disagreement
from kdlab.cluster.transport.security import NoHttp
from kdlab.codec import from_builtins, to_builtins, to_dict
from kdlab.papers.edl_dist.fair_shares import Demand
from kdlab.papers.edl_dist.leases import LeaseTable
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Need,
    Release,
    ReportBadTeacher,
    ReturnTeacher,
    ToCoordinator,
)
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

STUDENT_SILENT_S = 15.0  # a reader watches at least every 2 s
_TICK_MS = 250
_BATCHES_PER_TTL = 4  # two are queued at a teacher, and one may be slow
_OTHER_RATE = 0.1  # a teacher's t_t that differs by more than this is news


class Coordinator(SchedulerPlugin):
    name = "kdlab-coordinator"
    idempotent = True  # two processes may install it at once; the first stays

    def __init__(
        self,
        ttl_s: float = 6.0,
        deployment: Mapping[str, object] | None = None,
        store_url: str | None = None,
        store_prefix: str = "kdlab",
        journal: str | None = None,
    ) -> None:
        # Milliseconds since 1970: lease epochs never repeat those of a coordinator before.
        first = int(1000 * time.time())
        self.leases = LeaseTable(ttl_s, next_epoch=first)
        self._publish(deployment)
        self.store_url, self.store_prefix = store_url, store_prefix
        self.journal = journal
        self.expired = 0
        self.quarantine = Quarantine()
        self.students_seen: dict[str, float] = {}
        self.figures: dict[str, dict[str, float]] = {}  # of readers, for metrics
        self.renewals = 0

    async def start(self, scheduler: Scheduler) -> None:
        before = getattr(scheduler, "kdlab_coordinator", None)
        if before is self:
            return  # Dask starts again what a preload has added and started
        self.incarnation = uuid.uuid4().hex
        self.deployed = asyncio.Event()
        self.store: LeaseStore = make_store(self.store_url, self.store_prefix)
        self.shelf = WeightsCache()
        if self.journal is not None:
            self.leases = Recorded(
                self.leases,
                Path(self.journal),
                leave_out=("on_renewed",),  # hundreds a second, and they decide nothing
                state=lambda table: [table.version, table.next_epoch],
                ttl_s=self.leases.ttl_s,
                next_epoch=self.leases.next_epoch,
            ).machine
        self.news = ChangeNotifier(self.leases)
        self._restore(await self.store.load())
        operations = (
            *("deploy", "hello", "ready", "renew", "leave"),
            *("weights_source", "demand", "tell", "watch", "student_gone", "status"),
        )
        scheduler.handlers.update(
            {f"kdlab_{name}": getattr(self, name) for name in operations}
            | {"kdlab_weights": self.shelf.piece, "kdlab_weights_put": self.shelf.put}
        )
        self.metrics: PoolMetrics | None = None
        if can_be_shown() and not isinstance(scheduler, NoHttp):
            self.metrics = PoolMetrics(self.pool_status)
        self.ticker = PeriodicCallback(self.tick, _TICK_MS)
        self.ticker.start()
        if before is not None:  # this plugin replaces one that was removed
            await before.close()
        if self.metrics is not None:
            self.metrics.register()
        scheduler.kdlab_coordinator = self

    async def close(self) -> None:
        self.ticker.stop()
        if self.metrics is not None:
            self.metrics.unregister()
            self.metrics = None
        await self.store.close()
        await self.shelf.close()

    # The table and its copy

    def _publish(self, deployment: Mapping[str, object] | None) -> None:
        self.deployment = deployment
        self.published = None if deployment is None else from_builtins(Deployed, deployment)

    def _restore(self, kept: StoredRows) -> None:
        if kept.pool is None:
            return
        if self.deployment is None:
            self._publish(kept.pool.deployment)
        if not (kept.teachers or kept.students):
            return
        self.leases.on_restored(
            list(kept.teachers.values()),
            [Demand(**to_builtins(row)) for row in kept.students.values()],
            kept.pool.next_epoch,
            time.monotonic(),
        )
        now = time.monotonic()
        self.students_seen = dict.fromkeys(kept.students, now)
        self._changed()

    def _changed(self) -> None:
        """Copy what changed to the store, and wake the readers it concerns."""
        table = self.leases
        if table.touched:
            self._put_pool()
        for address in table.touched:
            lease = table.leases.get(address)
            if lease is None:
                self.store.drop(TEACHERS, address)
                continue
            self.store.put(TEACHERS, address, lease, lease.ttl_s)
        table.touched.clear()
        self.news.changed()

    def _put_pool(self) -> None:
        row = PoolRow(deployment=self.deployment, next_epoch=self.leases.next_epoch)
        self.store.put(POOL, THE_POOL, row)

    # Teachers

    async def deploy(self, deployment: Mapping[str, object]) -> str:
        """Publish what teachers are to serve; empty, or why not.

        Another deployment than before makes every teacher register and load again. While
        a student still holds teachers it is refused. The same models and data as before
        are one deployment, whatever batch, loss or way to send inputs a student has.
        """
        before, wanted = self.published, from_builtins(Deployed, deployment)
        if before is not None and before.fingerprint == wanted.fingerprint:
            return before.lacks(wanted)
        if before is not None:
            if self.leases.demands:
                return serves_others(self.leases.demands)
            for teacher in list(self.leases.leases):
                self._lost(teacher)
            self.quarantine.clear()
        self._publish(deployment)
        self._put_pool()
        self.deployed.set()
        return ""

    async def weights_source(self, address: str, sha256: str) -> dict[str, object]:
        """A `WeightsSource`: where a teacher gets weights whose path it cannot read."""
        peers = [
            (teacher, lease.info.wire_port)
            for teacher, lease in self.leases.leases.items()
            if lease.info and sha256 in (lease.info.weights or ()) and teacher != address
        ]
        return to_dict(self.shelf.source(address, sha256, peers))

    async def hello(
        self, address: str, serves: Mapping[str, object] | None = None, wait_s: float = 5
    ) -> dict[str, object] | None:
        """A teacher registers before it loads its model; told what to load, or None yet.

        A coordinator that knows nothing (it was started again) takes what a teacher that
        is loaded already `serves`.
        """
        if address not in self.leases.leases:
            self.leases.on_registered(address, time.monotonic())
        else:
            self.leases.on_renewed(address, time.monotonic())
        if self.deployment is None and serves is not None:
            self._publish(serves)
            self.deployed.set()
        if self.deployment is None:
            try:
                await asyncio.wait_for(self.deployed.wait(), wait_s)
            except TimeoutError:
                return None  # the teacher asks again
        return to_builtins(Welcome(self.deployment, self.leases.ttl_s / 4))

    async def ready(
        self,
        address: str,
        fingerprint: str,
        t_t: float,
        batch_s: float,
        answer: Sequence[Sequence[float]],
        facts: Mapping[str, object],
    ) -> dict[str, object]:
        """{} when the teacher is accepted, else a `Refusal`."""
        refusal = self._refusal(address, fingerprint, answer)
        if refusal is not None:
            return to_builtins(refusal)
        if not (math.isfinite(t_t) and t_t > 0 and math.isfinite(batch_s)):
            return to_builtins(Refusal(f"it measured {t_t} samples/s"))
        now = time.monotonic()
        info = believed(from_builtins(TeacherInfo, facts))
        # Leases are renewed between batches: one that takes long must not look like a hang.
        ttl_s = max(self.leases.ttl_s, _BATCHES_PER_TTL * batch_s)
        self.leases.on_ready(address, t_t, now, ttl_s, info)
        self._changed()
        return {}

    def _refusal(
        self, address: str, fingerprint: str, answer: Sequence[Sequence[float]]
    ) -> Refusal | None:
        left_s, why = self.quarantine.left(address, time.monotonic())
        if left_s > 0:
            return Refusal(f"a student could not use its answers: {why}", left_s)
        wanted = self.published
        if wanted is None or fingerprint != wanted.fingerprint:  # changed since its hello
            self._lost(address)
            serves = "nothing yet" if wanted is None else wanted.fingerprint
            why = f"it serves model {fingerprint}, this pool serves {serves}"
            return Refusal(why, load=True)
        why = disagreement(answer, wanted.reference)
        if why:
            self._lost(address)
        return Refusal(why) if why else None

    async def renew(self, address: str, t_t: float, news: Mapping[str, object]) -> bool:
        """Whether it is known; `news` are facts of its `TeacherInfo` that may be others now."""
        self.renewals += 1
        table = self.leases
        known = table.on_renewed(address, time.monotonic())
        if not known:
            return False
        lease = table.leases[address]
        if (before := lease.info) is not None:
            now = believed(from_builtins(TeacherInfo, to_builtins(before) | dict(news)))
            if (now.here, now.engine) != (before.here, before.engine):
                table.on_info(address, now)
                self._changed()
            lease.info = now
        self.store.renew(TEACHERS, address, lease.ttl_s)
        if amount(t_t) and abs(t_t - lease.t_t) > _OTHER_RATE * lease.t_t:
            table.on_rate(address, t_t, time.monotonic())
            self._changed()
        return True

    async def leave(self, address: str) -> None:
        self.leases.on_leaving(address, time.monotonic())
        self._changed()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: object) -> None:
        """Dask saw the connection break: the fast path, 0.01 s after a SIGKILL."""
        self._lost(worker)

    def _lost(self, address: str, *, expired: bool = False) -> None:
        if self.leases.on_lost(address, time.monotonic(), expired=expired):
            self._changed()

    def tick(self) -> None:
        now = time.monotonic()
        for teacher in self.leases.expired(now):
            self.expired += 1
            self._lost(teacher, expired=True)
        for student, seen in list(self.students_seen.items()):
            if now - seen > STUDENT_SILENT_S:
                self.student_gone(student)

    # Students

    async def demand(
        self,
        student: str,
        t_s: float,
        at_most: int | None,
        priority: float = 1.0,
        floor: int = 0,
    ) -> None:
        now = self.students_seen[student] = time.monotonic()
        self.leases.on_demand(student, amount(t_s), now, at_most, priority, floor)
        self.store.put(STUDENTS, student, StudentRow.of(self.leases.demands[student]))
        self._changed()

    async def tell(self, student: str, instruction: Mapping[str, object]) -> bool:
        """What a reader says of its teachers; whether one that it asked for came now."""
        table, now, got = self.leases, time.monotonic(), False
        match ToCoordinator.from_builtins(instruction):
            case AskTeacher(need):
                got = table.on_extra(student, now, amount(need))
            case Need(need) if student in table.demands:
                table.on_need(student, amount(need), now)
                self.store.put(STUDENTS, student, StudentRow.of(table.demands[student]))
            case Release(teacher, lease, need):
                table.on_release(student, teacher, lease, amount(need), now)
            case ReturnTeacher(teacher, lease):  # a request failed: it may come again
                table.on_release(student, teacher, lease, None, now)
            # Its answers are unusable; only whoever holds the lease may say so.
            case ReportBadTeacher(teacher, lease, why):
                if table.on_complaint(student, teacher, lease, now):
                    self.quarantine.put(teacher, why, now)
        self._changed()
        return bool(got)

    def student_gone(self, student: str) -> None:
        self.students_seen.pop(student, None)
        self.figures.pop(student, None)
        self.leases.on_student_gone(student, time.monotonic())
        self.store.drop(STUDENTS, student)
        self.news.gone(student)
        self._changed()

    async def watch(
        self,
        student: str,
        version: int,
        incarnation: str,
        wait_s: float,
        figures: Mapping[str, float] | None = None,
    ) -> dict[str, object]:
        """`PoolUpdate` of a student after `version`, as soon as there are some."""
        table, said = self.leases, figures or {}
        self.figures[student] = {
            name: amount(said[name]) for name in OF_READERS if name in said
        }
        if incarnation != self.incarnation:
            version = -1  # its version is one of a coordinator before
        self.students_seen[student] = time.monotonic()
        await self.news.wait(student, version, wait_s)
        self.students_seen[student] = time.monotonic()
        if student not in table.demands:
            return {}
        return {
            **to_builtins(table.delta(student, version)),
            "incarnation": self.incarnation,
        }

    async def status(self) -> dict[str, object]:
        """`PoolStatus`, for waiting pools, `kdlab doctor` and tests."""
        return dict(to_builtins(self.pool_status()))

    def pool_status(self) -> PoolStatus:
        """What is to be seen now."""
        now, published = time.monotonic(), self.published
        return PoolStatus(
            deployed="" if published is None else published.fingerprint,
            expired=self.expired,
            renewals=self.renewals,
            students={
                name: StudentStatus(d.t_s, d.rate, d.searching, self.figures.get(name, {}))
                for name, d in self.leases.demands.items()
            },
            teachers=tuple(TeacherStatus.of(le, now) for le in self.leases.leases.values()),
        )
