"""The Coordinator of EDL-Dist (section 3.1) as a plugin of the Dask scheduler.

It drives the pure table of kdlab/papers/edl_dist/leases.py: calls become events with the
scheduler's clock, and changes wake the readers that they concern. Teachers and readers talk
to each other directly; their data does not pass here.

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
    finite_amount,
    sanitized,
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
from kdlab.cluster.coordination.metrics import OF_READERS, PoolMetrics, metrics_available
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

STUDENT_SILENT_S = 15.0  # a reader calls `watch` at least every 2 s
_TICK_MS, _BATCHES_PER_TTL = 250, 4  # two batches are queued at a teacher, one may be slow
_OTHER_RATE = 0.1  # a change of a teacher's t_t by more than this is reported


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
        # Milliseconds since 1970: lease epochs never repeat those of an earlier coordinator.
        first = int(1000 * time.time())
        self.leases = LeaseTable(ttl_s, next_epoch=first)
        self._publish(deployment)
        self.store_url, self.store_prefix = store_url, store_prefix
        self.journal = journal
        self.expired = self.renewals = 0
        self.quarantine = Quarantine()
        self.students_seen: dict[str, float] = {}
        self.figures: dict[str, dict[str, float]] = {}  # numbers of readers, for metrics

    async def start(self, scheduler: Scheduler) -> None:
        before = getattr(scheduler, "kdlab_coordinator", None)
        if before is self:
            return  # Dask starts a plugin again that a preload added and started
        self.incarnation = uuid.uuid4().hex
        self.deployed = asyncio.Event()
        self.store: LeaseStore = make_store(self.store_url, self.store_prefix)
        self.shelf = WeightsCache()
        if self.journal is not None:
            self.leases = Recorded(
                self.leases,
                Path(self.journal),
                leave_out=("on_renewed",),  # hundreds a second, which decide nothing
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
        if metrics_available() and not isinstance(scheduler, NoHttp):
            self.metrics = PoolMetrics(self.pool_status)
        self.ticker = PeriodicCallback(self.tick, _TICK_MS)
        self.ticker.start()
        if before is not None:  # this plugin replaces a removed one
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

    # The table and its copy in the store

    def _publish(self, deployment: Mapping[str, object] | None) -> None:
        self.deployment = deployment
        self.published = None if deployment is None else from_builtins(Deployed, deployment)

    def _restore(self, stored: StoredRows) -> None:
        if stored.pool is None:
            return
        if self.deployment is None:
            self._publish(stored.pool.deployment)
        if not (stored.teachers or stored.students):
            return
        self.leases.on_restored(
            list(stored.teachers.values()),
            [Demand(**to_builtins(row)) for row in stored.students.values()],
            stored.pool.next_epoch,
            time.monotonic(),
        )
        self.students_seen = dict.fromkeys(stored.students, time.monotonic())
        self._changed()

    def _changed(self) -> None:
        """Copy changes to the store, and wake the readers that they concern."""
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

    def _put_student(self, student: str) -> None:
        row = StudentRow.from_demand(self.leases.demands[student])
        self.store.put(STUDENTS, student, row)

    # Teachers

    async def deploy(self, deployment: Mapping[str, object]) -> str:
        """Publish a deployment; returns why it is refused, empty where it is accepted.

        A new deployment makes every teacher register and load again. It is refused while
        a student still holds teachers. The same models and data are the same deployment,
        whatever batch, loss or inputs a student uses.
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
        """Return the `WeightsSource` for weights that a teacher cannot read at their path."""
        peers = [
            (teacher, lease.info.wire_port)
            for teacher, lease in self.leases.leases.items()
            if lease.info and sha256 in (lease.info.weights or ()) and teacher != address
        ]
        return to_dict(self.shelf.source(address, sha256, peers))

    async def hello(
        self, address: str, serves: Mapping[str, object] | None = None, wait_s: float = 5
    ) -> dict[str, object] | None:
        """Register a teacher before it loads a model; returns a `Welcome`, None if none yet.

        A restarted coordinator without a deployment adopts the one that a loaded teacher
        `serves`.
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
                return None  # the teacher calls again
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
        """Accept a loaded teacher; returns {} or a `Refusal`."""
        refusal = self._refusal(address, fingerprint, answer)
        if refusal is not None:
            return to_builtins(refusal)
        if not (math.isfinite(t_t) and t_t > 0 and math.isfinite(batch_s)):
            return to_builtins(Refusal(f"it measured {t_t} samples/s"))
        now = time.monotonic()
        info = sanitized(from_builtins(TeacherInfo, facts))
        # Leases are renewed between batches: a long batch must not look like a hang.
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
        if wanted is None or fingerprint != wanted.fingerprint:  # it changed since `hello`
            self._lost(address)
            serves = "nothing yet" if wanted is None else wanted.fingerprint
            why = f"it serves model {fingerprint}, this pool serves {serves}"
            return Refusal(why, load=True)
        why = disagreement(answer, wanted.reference)
        if why:
            self._lost(address)
        return Refusal(why) if why else None

    async def renew(self, address: str, t_t: float, news: Mapping[str, object]) -> bool:
        """Renew a lease; False for an unknown teacher. `news` updates its `TeacherInfo`."""
        self.renewals += 1
        table = self.leases
        known = table.on_renewed(address, time.monotonic())
        if not known:
            return False
        lease = table.leases[address]
        if (before := lease.info) is not None:
            now = sanitized(from_builtins(TeacherInfo, to_builtins(before) | dict(news)))
            if (now.here, now.engine) != (before.here, before.engine):
                table.on_info(address, now)
                self._changed()
            lease.info = now
        self.store.renew(TEACHERS, address, lease.ttl_s)
        if finite_amount(t_t) and abs(t_t - lease.t_t) > _OTHER_RATE * lease.t_t:
            table.on_rate(address, t_t, time.monotonic())
            self._changed()
        return True

    async def leave(self, address: str) -> None:
        self.leases.on_leaving(address, time.monotonic())
        self._changed()

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: object) -> None:
        """Handle a broken connection, which Dask reports 0.01 s after a SIGKILL."""
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
        self.leases.on_demand(student, finite_amount(t_s), now, at_most, priority, floor)
        self._put_student(student)
        self._changed()

    async def tell(self, student: str, instruction: Mapping[str, object]) -> bool:
        """Apply a reader's instruction; True where a requested teacher was granted at once."""
        table, now, got = self.leases, time.monotonic(), False
        match ToCoordinator.from_builtins(instruction):
            case AskTeacher(need):
                got = table.on_extra(student, now, finite_amount(need))
            case Need(need) if student in table.demands:
                table.on_need(student, finite_amount(need), now)
                self._put_student(student)
            case Release(teacher, lease, need):
                table.on_release(student, teacher, lease, finite_amount(need), now)
            case ReturnTeacher(teacher, lease):  # a request failed: it may be leased again
                table.on_release(student, teacher, lease, None, now)
            # Its answers are unusable; only the student that holds the lease may report it.
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
        """Wait for changes of a student after `version`; returns a `PoolUpdate`."""
        table, numbers = self.leases, figures or {}
        self.figures[student] = {
            name: finite_amount(numbers[name]) for name in OF_READERS if name in numbers
        }
        if incarnation != self.incarnation:
            version = -1  # its version is of an earlier coordinator
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
        """Return the `PoolStatus`, for waiting pools, `kdlab doctor` and tests."""
        return dict(to_builtins(self.pool_status()))

    def pool_status(self) -> PoolStatus:
        """Status of the pool now."""
        now, published, rows = time.monotonic(), self.published, self.leases.leases.values()
        return PoolStatus(
            deployed="" if published is None else published.fingerprint,
            expired=self.expired,
            renewals=self.renewals,
            students={
                name: StudentStatus(d.t_s, d.rate, d.searching, self.figures.get(name, {}))
                for name, d in self.leases.demands.items()
            },
            teachers=tuple(TeacherStatus.from_row(row, now) for row in rows),
        )
