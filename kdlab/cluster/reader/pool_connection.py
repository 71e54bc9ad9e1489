"""The reader's connections: to teachers (label_wire.py), and to the coordinator (Dask's RPC)."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from distributed.core import ConnectionPool
from distributed.security import Security
from numpy.typing import NDArray

from kdlab.cluster.child_configs import PoolConnectionConfig
from kdlab.cluster.coordination.coordinator_messages import PoolUpdate
from kdlab.cluster.transport.frames import ProtocolError
from kdlab.cluster.transport.label_wire import LabelClient, brief, connect
from kdlab.cluster.transport.messages import (
    LabelRequest,
    RequestTimes,
    decode,
    engine_of,
    request,
)
from kdlab.cluster.transport.wire import CALL_S, call_coordinator
from kdlab.codec import from_builtins, to_dict
from kdlab.papers.edl_dist.leases import Fate
from kdlab.papers.edl_dist.reader_rules import Teacher
from kdlab.supervision.backoff import Backoff

_WATCH_S = 2.0
_AGAIN_S, _LONGEST_S = 0.2, 5.0  # between tries to reach the coordinator


class Unusable(Exception):
    """A teacher's answer cannot be trained on."""


class Unreachable(Exception):
    """A request got no answer."""


class CoordinatorReply(NamedTuple):
    """Changes of a student's teachers; with `full`, its complete state."""

    teachers: list[Teacher]  # that it was given
    gone: dict[str, Fate]
    full: bool
    announced: bool = False  # the student's demand was sent again


WAITS = (*RequestTimes._fields, "wire_s")
WAYS = ("reference", "value")  # in which inputs go to a teacher


class PoolConnection:
    def __init__(self, pool: ConnectionPool, config: PoolConnectionConfig) -> None:
        self._pool, self._config = pool, config
        self._ports: dict[str, int] = {}  # of the label wires, by address of the teacher
        self._clients: dict[str, asyncio.Task[LabelClient]] = {}
        self.engines: dict[str, str] = {}  # teacher -> engine of its last answer
        self._carried = dict.fromkeys(WAYS, 0)  # bytes of arrays, in both directions
        self._answered = dict.fromkeys(WAYS, 0)  # samples
        self.waits = dict.fromkeys(WAITS, 0.0)  # seconds of answers, by kind

    @classmethod
    async def open(cls, config: PoolConnectionConfig) -> "PoolConnection":
        secured = Security().get_connection_args("client")  # of `security.enable_tls`
        pool = await ConnectionPool(limit=4096, timeout=5, connection_args=secured)
        return cls(pool, config)

    def connections(self) -> int:
        """Number of open connections, to teachers and to the coordinator."""
        return int(self._pool.open) + len(self._clients)

    async def close(self) -> None:
        self.forget(list(self._clients))
        await self._pool.close()

    async def updates(
        self,
        away: Callable[[str], None] = lambda why: None,
        figures: Callable[[], Mapping[str, float]] = dict,
    ) -> AsyncIterator[CoordinatorReply]:
        """Yield changes for this student, for ever, as soon as they happen.

        The demand is announced first, and again after a restart of the coordinator. While
        the coordinator does not answer, `away` gets the reason and retries continue: known
        teachers still serve, over their own connections.
        """
        version, incarnation = -1, ""
        again = Backoff(_AGAIN_S, longest_s=_LONGEST_S)
        c = self._config
        how = {"at_most": c.at_most, "priority": c.priority, "floor": c.floor}
        while True:
            try:
                update = await self.coordinator(
                    "watch",
                    version=version,
                    incarnation=incarnation,
                    wait_s=_WATCH_S,
                    figures=figures(),
                )
                if not update:
                    await self.coordinator("demand", t_s=c.rules.t_s, **how)
                    yield CoordinatorReply([], {}, full=False, announced=True)
                    continue
            except (OSError, TimeoutError) as error:
                away(brief(error))
                await asyncio.sleep(again.wait_s() * random.uniform(0.5, 1.0))
                continue
            changes = from_builtins(PoolUpdate, update)
            version, incarnation = changes.version, changes.incarnation
            again.succeeded()
            known = [(lease, lease.info) for lease in changes.held if lease.info]
            ports = {lease.teacher: info.wire_port for lease, info in known}
            self.follow(ports, changes.gone, full=changes.full)
            teachers = [Teacher.from_lease(lease, info) for lease, info in known]
            yield CoordinatorReply(teachers, dict(changes.gone), changes.full)

    def follow(
        self, ports: Mapping[str, int], gone: Collection[str], *, full: bool
    ) -> None:
        """Take in the ports of new teachers, by address, and drop those that are gone."""
        old = set(self._ports) if full else set(gone)
        self.forget(old - set(ports))
        self._ports |= ports

    def forget(self, teachers: Iterable[str]) -> None:
        """Close these connections as soon as no answer is awaited on them."""
        for teacher in teachers:
            opening = self._clients.pop(teacher, None)
            if opening is None:
                continue
            if not opening.done():
                opening.cancel()
            elif not opening.cancelled() and opening.exception() is None:
                opening.result().retire()

    async def _client(self, teacher: str) -> LabelClient:
        """Return the connection to a teacher, opened at its first use.

        Raises:
            OSError, TimeoutError: no answer there.
        """
        opening = self._clients.get(teacher)
        if opening is not None and opening.done():
            failed = opening.cancelled() or opening.exception() is not None
            if failed or not opening.result().usable:
                opening = None
        if opening is None:
            host = urlsplit(teacher).hostname or ""
            opening = asyncio.ensure_future(connect(host, self._ports[teacher]))
            self._clients[teacher] = opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # dropped meanwhile
                raise ConnectionError("this teacher is gone") from None
            raise

    async def soft_labels(
        self,
        teacher: str,
        epoch: int,
        ids: NDArray[np.int64],
        views: NDArray[np.uint8] | None,
        *,
        fresh: bool = False,
    ) -> NDArray[np.float32]:
        """Ask a teacher for (N, classes) float32 logits; `fresh` ones come from no cache.

        Raises:
            Unreachable: no connection, or no answer within the deadline.
            Unusable: an error of the teacher, a wrong shape, numbers that are not finite.
        """
        config = self._config
        asked = LabelRequest(
            epoch=epoch,
            replies=config.replies,
            top_k=config.top_k,
            serves=config.serves,
            fresh=fresh,
        )
        arrays = request(config.inputs, ids, views)
        try:
            client = await self._client(teacher)
        except (OSError, TimeoutError, KeyError) as error:  # KeyError: dropped meanwhile
            raise Unreachable(f"no connection to it ({brief(error)})") from error
        sent_at = time.monotonic()
        try:
            future = client.ask(to_dict(asked), arrays)
            header, answer = await asyncio.wait_for(future, config.rules.deadline_s)
        except TimeoutError:
            client.transport.abort()  # it may be dead; the next lease reconnects
            raise Unreachable(f"no answer within {config.rules.deadline_s:g} s") from None
        except OSError as error:
            raise Unreachable(f"its connection broke ({brief(error)})") from error
        except ProtocolError as error:
            raise Unusable(f"its answer cannot be read ({error})") from error
        if "error" in header:
            raise Unusable(f"it raised {header['error']}")
        self._count_waits(RequestTimes.from_answer(answer), time.monotonic() - sent_at)
        self.engines[teacher] = engine_of(answer)
        try:
            logits = decode(answer, config.classes)
        except ValueError as error:
            raise Unusable(brief(error)) from error
        fault = _fault(logits, (len(ids), config.classes))
        if fault:
            raise Unusable(fault)
        way = "reference" if views is None else "value"
        both = (*arrays.values(), *answer.values())
        self._carried[way] += sum(array.nbytes for array in both)
        self._answered[way] += len(ids)
        return logits

    def _count_waits(self, took: RequestTimes | None, total_s: float) -> None:
        """Add the times of an answer to `waits`."""
        if took is None:
            return
        for name, seconds in took._asdict().items():
            self.waits[name] += seconds
        self.waits["wire_s"] += max(0.0, total_s - sum(took))

    def figures(self) -> dict[str, float]:
        """Bytes per sample, seconds of answers and labels so far; 0 bytes for an unused way."""
        sizes = {
            f"bytes_per_sample_{way}": self._carried[way] / max(1, self._answered[way])
            for way in WAYS
        }
        return sizes | self.waits | {"labels": sum(self._answered.values())}

    async def coordinator(self, operation: str, **arguments: object) -> object:
        """Call an operation of the coordinator for this student.

        Raises:
            OSError, TimeoutError: the scheduler is gone or silent.
        """
        remote = self._pool(self._config.coordinator)
        return await call_coordinator(
            remote, operation, CALL_S, student=self._config.student, **arguments
        )


def _fault(logits: NDArray[np.float32], shape: tuple[int, int]) -> str:
    """Why an answer cannot be used; empty where it can."""
    if logits.shape != shape:
        return f"it answered with shape {logits.shape}, expected {shape}"
    bad = int((~np.isfinite(logits)).sum())
    return f"{bad} of {logits.size} numbers of its answer are not finite" if bad else ""
