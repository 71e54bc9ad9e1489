"""The DistilReader of EDL-Dist: feeds one student from teachers that come and go.

The I/O half; the decisions are in kdlab/papers/edl_dist:
    when to send, hold, ask for a teacher    hybrid_schedule.py   (Algorithm 1)
    which batches to send again              in_flight.py         (section 3.4)
    who gets which teacher                   leases.py            (in the coordinator)

Rule 1. Nothing is decided here. A fact arrives (labels, a free slot, a lost teacher), it
        is passed on as an event with its time, and the returned instructions are done.
Rule 2. Everything runs on one asyncio loop. No lock exists because nothing else touches
        the state. After each fact, `_pump` delivers and sends whatever has become possible.
Rule 3. A process of its own: in a thread it would take the trainer's interpreter lock and
        cost 10 to 28 % at steps of a few milliseconds. It imports no torch.
"""

import asyncio
import json
import math
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from distributed.core import ConnectionPool
from distributed.protocol import to_serialize
from numpy.typing import NDArray

from kdlab.cluster import notebook_components
from kdlab.cluster.children import configured
from kdlab.cluster.ring import Layout, Ring
from kdlab.cluster.wire import CALL_S, settle, within
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec
from kdlab.data.samples import PlannedSamples, planned
from kdlab.papers.edl_dist.assignment import static_share
from kdlab.papers.edl_dist.hybrid_schedule import (
    Level,
    Schedule,
    on_request_failed,
    on_teachers_changed,
    on_volume,
)
from kdlab.papers.edl_dist.in_flight import InFlight, TaskId

_MONITOR_S = 0.05
_WATCH_S = 2.0
_COORDINATOR_TRIES = 3
_BACK_OFF_S = 1.0  # before a teacher whose connection failed may come again


class StudentReader:
    def __init__(self, config: dict[str, Any], samples: PlannedSamples, ring: Ring) -> None:
        self.config, self.samples, self.ring = config, samples, ring
        self.student: str = config["student"]
        self.schedule = Schedule(
            lt=config["lt"],
            ut=config["ut"],
            batch=samples.plan.largest,
            policy=config["policy"],
            settle_s=config["settle_s"],
            window_s=config["window_s"],
        )
        self.ledger = InFlight(limit=config["per_teacher"])
        self.plan: dict[int, list[NDArray[Any]]] = {}  # epochs under way, cut into batches
        self.fresh = self._fresh_tasks()
        self.upcoming = next(self.fresh, None)
        self.ready: dict[TaskId, NDArray[np.float32]] = {}
        self.views: dict[TaskId, NDArray[np.uint8]] = {}  # kept for a re-send, by value
        self.epoch: int = config["start"]["epoch"]  # the one being delivered
        self.delivered: set[int] = set(config["start"]["done"])  # batches of that epoch
        if len(self.delivered) == samples.plan.batches:  # saved after an epoch's last batch
            self.epoch, self.delivered = self.epoch + 1, set()
        self.free_slots = list(range(ring.layout.slots))
        self.filled: dict[int, int] = {}  # slot -> samples, until the trainer frees it
        self.batches_delivered = 0
        self.teachers: dict[str, dict[str, Any]] = {}  # address -> lease, t_t, name ...
        self.unusable: set[tuple[str, int]] = set()  # (address, lease) given up on
        self.released: set[str] = set()
        self.last_trouble = ""
        self.announced = False  # the coordinator knows this student's demand
        self.without_teacher_since: float | None = time.monotonic()
        self.said_share = False
        self.volume_max = 0
        self.background: set[asyncio.Task[None]] = set()

    # The student's tasks

    def _fresh_tasks(self) -> Iterator[TaskId]:
        """Every batch from the start position to the end of training, in order."""
        start = self.config["start"]
        for epoch in range(start["epoch"], self.samples.plan.epochs):
            self.plan[epoch] = self.samples.batches(epoch)
            done = set(start["done"]) if epoch == start["epoch"] else set()
            for index in range(len(self.plan[epoch])):
                if index not in done:
                    yield epoch, index

    def _ids(self, task: TaskId) -> NDArray[Any]:
        return self.plan[task[0]][task[1]]

    # Facts

    def on_slot_free(self, slot: int) -> None:
        del self.filled[slot]
        self.free_slots.append(slot)
        self._pump()

    def on_labels(
        self, task: TaskId, teacher: str, lease: int, logits: NDArray[np.float32]
    ) -> None:
        if self.ledger.on_answer(task, teacher, lease):
            self.ready[task] = logits
        self._pump()

    def on_request_failed(self, teacher: str, lease: int, why: str) -> None:
        """A request came to nothing: no connection, no answer in time, or an unusable one."""
        first = (teacher, lease) not in self.unusable
        self.unusable.add((teacher, lease))
        again = self.ledger.on_teacher_lost(teacher, lease)
        facts = self.teachers.get(teacher, {})
        if facts.get("lease") == lease:  # it may be back under a new one
            del self.teachers[teacher]
        if first:
            self.last_trouble = why
            self._say(
                "teacher_lost",
                teacher=facts.get("name", teacher),
                why=why,
                resent=again,
            )
            self._teachers_changed()
        self._pump()

    def on_teachers(self, reply: dict[str, Any]) -> None:
        """The coordinator's list of this student's teachers."""
        listed = {t["address"]: t for t in reply["teachers"]}
        current = {a: t for a, t in listed.items() if (a, t["lease"]) not in self.unusable}
        for address, before in list(self.teachers.items()):
            now = current.get(address)
            if now is not None and now["lease"] == before["lease"]:
                continue
            polite = address in reply["left"] or address in self.released
            self.released.discard(address)
            again = 0 if polite else self.ledger.on_teacher_lost(address, before["lease"])
            hung = address in reply["expired"]
            self._say(
                "teacher_left" if polite else "teacher_lost",
                teacher=before.get("name", address),
                why="silent beyond its lease" if hung else "its connection broke",
                resent=again,
            )
        joined = [a for a, t in current.items() if self._is_new(a, t)]
        changed = bool(joined) or current.keys() != self.teachers.keys()
        self.teachers = current
        for address in joined:
            self._say("teacher_joined", **current[address])
        if changed:
            self._teachers_changed()
        self._pump()

    def _is_new(self, address: str, teacher: dict[str, Any]) -> bool:
        before = self.teachers.get(address)
        return before is None or before["lease"] != teacher["lease"]

    def _teachers_changed(self) -> None:
        now = time.monotonic()
        self.schedule, _ = on_teachers_changed(self.schedule, now)
        if self.teachers:
            self.without_teacher_since = None
        elif self.without_teacher_since is None:
            self.without_teacher_since = now
            self._say(
                "no_teacher",
                address=self.config["coordinator"],
                unplaced=self.ledger.samples,
                wait_s=self.config["wait_s"],
            )

    def on_monitor(self) -> None:
        """Algorithm 1, lines 3 to 12."""
        self.schedule, told = on_volume(self.schedule, self.level())
        for instruction in told:
            if instruction == "request_teacher":
                if self.announced:
                    self._spawn(self._request_teacher())
                else:  # line 1 comes first
                    self.schedule = on_request_failed(self.schedule)
            elif instruction == "release_teacher":
                self._spawn(self._release_teacher())
            # send_inputs and hold_inputs are states of the schedule, read by _send

    def level(self) -> Level:
        return Level(
            time=time.monotonic(),
            unused=sum(map(len, self.ready.values())) + sum(self.filled.values()),
            in_flight=self.ledger.samples,
            teachers=len(self.teachers),
            student_waits=not self.filled,
        )

    # What has become possible

    def _pump(self) -> None:
        self._deliver()
        self.on_monitor()
        self._send()
        self.volume_max = max(self.volume_max, self.level().volume)

    def _deliver(self) -> None:
        while self.free_slots and (task := self._next_ready()) is not None:
            logits = self.ready.pop(task)
            ids = self._ids(task)
            views = self.views.pop(task, None)
            if views is None:
                views = self.samples.views(ids, task[0])
            slot, count = self.free_slots.pop(0), len(ids)
            arrays = self.ring.slot(slot)
            arrays["ids"][:count] = ids
            arrays["labels"][:count] = self.samples.labels(ids)
            arrays["soft"][:count] = logits
            arrays["views"][:count] = views
            self.filled[slot] = count
            self.batches_delivered += 1
            self._tell(
                slot=slot, epoch=task[0], batch=task[1], n=count, figures=self.figures()
            )
            self._delivered(task)

    def _next_ready(self) -> TaskId | None:
        """The next batch to hand over: epochs one after the other, within one any or strict."""
        candidates = [task for task in self.ready if task[0] == self.epoch]
        if not candidates:
            return None
        first = min(candidates)
        if self.config["order"] == "any":
            return first
        expected = next(
            i for i in range(len(self.plan[self.epoch])) if i not in self.delivered
        )
        return first if first[1] == expected else None

    def _delivered(self, task: TaskId) -> None:
        self.delivered.add(task[1])
        if len(self.delivered) == len(self.plan[self.epoch]):
            del self.plan[self.epoch]
            self.epoch += 1
            self.delivered = set()

    def _send(self) -> None:
        while True:
            task = self.ledger.next_again()
            if task is None:
                task = self.upcoming
                if task is None:
                    return
                if not self.schedule.may_send(self.level(), len(self._ids(task))):
                    return
            teacher = self.ledger.pick(self.teachers)
            if teacher is None:
                return
            if task == self.upcoming:
                self.upcoming = next(self.fresh, None)
            lease = self.teachers[teacher]["lease"]
            size = len(self._ids(task))
            self.ledger.on_sent(task, size, teacher, lease, time.monotonic())
            self._spawn(self._ask(task, teacher, lease))

    # Wires

    async def _ask(self, task: TaskId, teacher: str, lease: int) -> None:
        """One request: every way it can end becomes one fact."""
        ids = self._ids(task)
        given: dict[str, Any] = {"ids": np.ascontiguousarray(ids).tobytes()}
        if self.config["inputs"] == "value_uint8":
            if task not in self.views:
                self.views[task] = self.samples.views(ids, task[0])
            given = {"views": to_serialize(self.views[task])}
        call = self.pool(teacher).kdlab_infer(epoch=task[0], **given)
        try:
            reply = await within(self.config["deadline_s"], call)
        except TimeoutError:
            await self._give_back(
                teacher, lease, f"no answer within {self.config['deadline_s']:g} s"
            )
            return
        except OSError as error:  # Dask's CommClosedError is one
            await self._give_back(
                teacher, lease, f"its connection broke ({type(error).__name__})"
            )
            return
        except Exception as error:  # raised by the teacher's own code, of any kind
            await self._complain(teacher, lease, f"it raised {_short(error)}")
            return
        trouble = _trouble(reply["logits"], (len(ids), self.samples.classes))
        if trouble:
            await self._complain(teacher, lease, trouble)
            return
        self.on_labels(task, teacher, lease, reply["logits"])

    async def _give_back(self, teacher: str, lease: int, why: str) -> None:
        """The wire failed, perhaps for a moment: it may come again, under a new lease."""
        first = (teacher, lease) not in self.unusable
        self.on_request_failed(teacher, lease, why)
        if first:
            await asyncio.sleep(_BACK_OFF_S)  # a teacher that is dead is gone by then
            await self._coordinator("give_back", teacher=teacher, lease=lease)

    async def _complain(self, teacher: str, lease: int, why: str) -> None:
        self.on_request_failed(teacher, lease, why)
        await self._coordinator("complain", teacher=teacher, why=why)

    async def _request_teacher(self) -> None:
        try:
            got = await self._coordinator("extra")
        except (OSError, TimeoutError):
            self.schedule = on_request_failed(self.schedule)
            raise
        self._say("teacher_requested", granted=bool(got))

    async def _release_teacher(self) -> None:
        slowest = min(self.teachers, key=lambda a: self.teachers[a]["t_t"], default=None)
        if slowest is not None:
            self.released.add(slowest)
            try:
                await self._coordinator("release", teacher=slowest)
            except (OSError, TimeoutError):
                self.released.discard(slowest)
                raise

    async def _coordinator(self, operation: str, **arguments: Any) -> Any:
        remote = self.pool(self.config["coordinator"])
        call = getattr(remote, f"kdlab_{operation}")
        return await within(CALL_S, call(student=self.student, **arguments))

    async def _watch(self) -> None:
        """Follow the coordinator's list; announce the demand, again after a restart."""
        version, failures = -1, 0
        while True:
            try:
                reply = await self._coordinator("watch", version=version, wait_s=_WATCH_S)
                if not reply["known"]:
                    await self._coordinator(
                        "demand", t_s=self.config["t_s"], at_most=self.config["at_most"]
                    )
                    self.announced = True
                    continue
            except (OSError, TimeoutError) as error:
                failures += 1
                if failures >= _COORDINATOR_TRIES:
                    self._tell(error="coordinator", why=_short(error))
                    return
                await asyncio.sleep(1.0)  # between tries; _COORDINATOR_TRIES ends them
                continue
            version, failures = reply["version"], 0
            self.on_teachers(reply)
            self._say_static_share()

    def _say_static_share(self) -> None:
        """Line 1 of Algorithm 1, once, for the record."""
        if self.teachers and not self.said_share:
            self.said_share = True
            mean = sum(t["t_t"] for t in self.teachers.values()) / len(self.teachers)
            n = static_share(self.config["t_s"], mean)
            self._say(
                "scheduled",
                t_s=self.config["t_s"],
                t_t=mean,
                n=n,
                got=len(self.teachers),
            )

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            message = json.loads(line)
            if "free" in message:
                self.on_slot_free(message["free"])
            if message.get("stop"):
                return

    async def _monitor(self) -> None:
        while True:
            await asyncio.sleep(_MONITOR_S)
            self._pump()
            since = self.without_teacher_since
            # A student that still has labels, or needs no more, does not miss a teacher.
            misses = self.level().student_waits and not self.ready and self._work_is_open()
            if since is not None and not misses:
                self.without_teacher_since = since = time.monotonic()
            if since is not None and time.monotonic() - since > self.config["wait_s"]:
                self._tell(
                    error="teacher_lost",
                    unplaced=self.ledger.samples,
                    batches=self.batches_delivered,
                    why=self.last_trouble,
                )
                return

    # Words to the trainer

    def figures(self) -> dict[str, float]:
        level = self.level()
        return {
            "volume": level.volume,
            "in_flight": level.in_flight,
            "volume_max": self.volume_max,
            "teachers": level.teachers,
            "resends": self.ledger.resends,
        }

    def _say(self, event: str, **data: Any) -> None:
        self._tell(report=event, data=data)

    def _tell(self, **message: Any) -> None:
        self.writer.write(json.dumps(message, default=str).encode() + b"\n")

    def _work_is_open(self) -> bool:
        return bool(self.ledger.sizes) or self.upcoming is not None

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)  # asyncio itself keeps only a weak reference
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self.background.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError | TimeoutError):
            return  # the coordinator is away; _watch notices and reports
        if error is not None:
            self._tell(error="defect", why=repr(error))

    async def run(self, end: socket.socket) -> None:
        """Until the trainer says stop or goes away."""
        stream, self.writer = await asyncio.open_connection(sock=end)
        self.pool = await ConnectionPool(limit=512, timeout=5)
        self._spawn(self._watch())
        self._spawn(self._monitor())
        await self._listen(stream)
        for task in list(self.background):
            task.cancel()
        try:
            await self._coordinator("student_gone")
        except (OSError, TimeoutError):
            return  # nobody left to tell
        await self.pool.close()


def _trouble(logits: NDArray[np.float32], shape: tuple[int, int]) -> str:
    """Why an answer cannot be used; empty when it can."""
    if logits.shape != shape:
        return f"it answered with shape {logits.shape}, expected {shape}"
    bad = int((~np.isfinite(logits)).sum())
    return f"{bad} of {logits.size} numbers of its answer are not finite" if bad else ""


def _short(error: BaseException) -> str:
    text = str(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300]


def main() -> None:
    config = configured()
    settle()
    notebook_components.accept(config["components"])
    spec = construct(DataSpec, from_dict(config["samples"]["data"], "the student's data"))
    samples = planned(spec.load(), spec.to_dict(), **config["samples"]["plan"])
    layout = Layout(**config["layout"] | {"shape": tuple(config["layout"]["shape"])})
    ring = Ring(layout, config["ring_fd"])
    end = socket.socket(fileno=config["socket_fd"])
    end.setblocking(False)
    config["t_s"] = max(config["t_s"], math.ulp(1.0))
    asyncio.run(StudentReader(config, samples, ring).run(end))


if __name__ == "__main__":
    main()
