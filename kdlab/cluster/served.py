"""EDL-Dist as a SoftLabelSource: the trainer's end of the DistilReader."""

import socket
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch

from kdlab.cluster.children import Child, tail
from kdlab.cluster.notebook_components import pack
from kdlab.cluster.ring import Channel, Layout, Ring
from kdlab.config import Fault, Range, register
from kdlab.config.registry import known_names
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE
from kdlab.errors import ClusterError, RunStopped, TeacherLost
from kdlab.soft_labels.source import Batch, SourceContext, SourceSpec

_LOOK_S = 0.2  # how often a waiting trainer looks whether it should stop


@register("cluster/served")
@dataclass(frozen=True, kw_only=True)
class Served(SourceSpec):
    """EDL-Dist: soft labels from a pool of teachers that may come and go.

    policy: when to ask for one more teacher; `paper` is Algorithm 1 as printed.
    lt, ut: lower and upper threshold of unused soft labels, in samples; ut bounds what
        has arrived plus what is in flight.
    inputs: `reference` sends sample ids (teachers must be able to read the data),
        `value_uint8` sends the pixels.
    order: `any` trains on batches as they arrive, `strict` in the plan's order.
    per_teacher: requests in flight per teacher.
    at_most: teachers this student may hold; null is no limit.
    deadline_s: for one request; then it is sent to another teacher.
    wait_s: how long the student waits when no teacher is left, before the run fails.
    settle_s, window_s: of the guarded policy: time a change takes to show, and the
        shortest look before a teacher is released.
    slots: batches that lie ready for the trainer in shared memory.
    """

    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "served"
    policy: Literal["paper", "guarded"] = "guarded"
    lt: Annotated[int, NOT_NEGATIVE] = 256
    ut: Annotated[int, Range(ge=1)] = 2048
    inputs: Literal["reference", "value_uint8"] = "reference"
    order: Literal["any", "strict"] = "any"
    per_teacher: Annotated[int, Range(ge=1)] = 2
    at_most: Annotated[int, Range(ge=1)] | None = None
    deadline_s: Annotated[float, POSITIVE] = 30.0
    wait_s: Annotated[float, POSITIVE] = 120.0
    settle_s: Annotated[float, POSITIVE] = 3.0
    window_s: Annotated[float, POSITIVE] = 10.0
    slots: Annotated[int, Range(ge=2)] = 4

    def cross_faults(self) -> Iterator[Fault]:
        if self.lt >= self.ut:
            yield Fault("lt", f"is {self.lt} and ut is {self.ut}; lt must be below ut")

    def build(self, context: SourceContext) -> "ServedSource":
        return ServedSource(self, context)


class ServedSource:
    def __init__(self, spec: Served, context: SourceContext) -> None:
        assert context.pool is not None
        assert context.student_rate is not None
        self.spec, self.context = spec, context
        samples = context.samples
        first = samples.batches(0)[0]
        layout = Layout(
            slots=spec.slots,
            largest=max(map(len, samples.batches(0))),
            shape=tuple(samples.views(first[:1], 0).shape[1:]),
            classes=samples.classes,
        )
        self.ring = Ring.create(layout)
        self.log = context.folder / "reader.log"
        self._held: int | None = None
        self._figures: dict[str, float] = {}
        self._batches = len(samples.batches(0))
        ours, theirs = socket.socketpair()
        config = spec.fields() | {
            "student": context.student,
            "coordinator": context.pool.address,
            "samples": samples.describe(),
            "components": pack(set(known_names())),
            "layout": asdict(layout),
            "start": context.start,
            "t_s": context.student_rate(),
            "ring_fd": self.ring.fd,
            "socket_fd": theirs.fileno(),
        }
        self.channel = Channel(ours)
        self.reader = Child(
            "kdlab.cluster.student_reader",
            config,
            self.log,
            fds=(self.ring.fd, theirs.fileno()),
        )
        theirs.close()
        self._first: dict[str, Any] | None = None
        if self._has_work():
            self._first = self._wait_for_slot()  # primed: the first soft labels are there

    def _has_work(self) -> bool:
        start = self.context.start
        epochs = int(self.context.samples.describe()["plan"]["epochs"])
        return (epochs - start["epoch"]) * self._batches > len(start["done"])

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        for _ in range(self._batches - len(done)):
            yield self._next(epoch)

    def _next(self, epoch: int) -> Batch:
        if self._held is not None:
            self.channel.send(free=self._held)
            self._held = None
        message, self._first = self._first or self._wait_for_slot(), None
        if message["epoch"] != epoch:
            raise ClusterError(
                f"The reader delivered epoch {message['epoch']} during epoch {epoch}. "
                f"This is a defect of kdlab; log of the reader: {self.log}"
            )
        self._held = message["slot"]
        self._figures = message["figures"]
        arrays = self.ring.slot(message["slot"])
        rows = slice(0, message["n"])
        return Batch(
            index=message["batch"],
            ids=arrays["ids"][rows].copy(),
            views=torch.from_numpy(arrays["views"][rows]),
            labels=torch.from_numpy(arrays["labels"][rows]),
            soft=torch.from_numpy(arrays["soft"][rows]),
        )

    def _wait_for_slot(self) -> dict[str, Any]:
        """The next filled slot.

        Raises:
            TeacherLost: no teacher is left and none came within `wait_s`.
            ClusterError: the reader or the coordinator is gone.
            RunStopped: the user asked while the student waited.
        """
        while True:
            try:
                message = self.channel.receive(_LOOK_S)
            except EOFError:
                raise ClusterError(self.reader.obituary("ended during the run")) from None
            if message is None:
                if self.context.stop():
                    raise RunStopped("stopped by the user while waiting for soft labels")
            elif "slot" in message:
                return message
            elif "report" in message:
                self.context.report(message["report"], **message["data"])
            else:
                self._fail(message)

    def _fail(self, message: dict[str, Any]) -> None:
        assert self.context.pool is not None
        address, kind = self.context.pool.address, message["error"]
        if kind == "teacher_lost":
            raise TeacherLost(
                unplaced=message["unplaced"],
                batches=message["batches"],
                waited_s=self.spec.wait_s,
                address=address,
                log=f"{self.log}. Last trouble: {message['why'] or 'none'}",
            )
        if kind == "coordinator":
            raise ClusterError(
                f"The scheduler at {address} is gone ({message['why']}). The run stopped; no "
                "sample is lost. Start the scheduler again and resume the run from its last "
                f"checkpoint. Log of the reader: {self.log}"
            )
        raise ClusterError(
            f"The reader failed: {message['why']}. End of {self.log}:\n{tail(self.log)}"
        )

    def figures(self) -> dict[str, float]:
        return self._figures

    def close(self) -> None:
        """Tell the reader to go; its teachers become free for others."""
        if self.channel.send(stop=True):
            self._drain()
        self.reader.stop()
        self.channel.close()
        self.ring.close()

    def _drain(self) -> None:
        """Read what is still said, so that the reader can finish writing."""
        try:
            for _ in range(10_000):
                message = self.channel.receive(3.0)
                if message is None:
                    return
                if "report" in message:
                    self.context.report(message["report"], **message["data"])
        except EOFError:
            return
