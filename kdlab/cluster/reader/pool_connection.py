"""The reader's two wires: to its teachers (label_wire.py), to the coordinator (Dask's RPC)."""

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
    """A teacher answered, and the answer cannot be trained on."""


class Unreachable(Exception):
    """A request came to nothing on the way."""


class CoordinatorReply(NamedTuple):
    """What the coordinator says has changed; with `full`, all there is."""

    given: list[Teacher]
    gone: dict[str, Fate]
    full: bool
    announced: bool = False  # the student's demand was said anew


WAITS = (*RequestTimes._fields, "wire_s")
WAYS = ("reference", "value")  # of inputs to a teacher


class PoolConnection:
    def __init__(self, pool: ConnectionPool, config: PoolConnectionConfig) -> None:
        self._pool, self._config = pool, config
        self._ports: dict[str, int] = {}  # of the teachers' label wires, by address
        self._askers: dict[str, asyncio.Task[LabelClient]] = {}
        self.engines: dict[str, str] = {}  # teacher -> what computed its last answer
        self._carried = dict.fromkeys(WAYS, 0)  # bytes of arrays, there and back
        self._answered = dict.fromkeys(WAYS, 0)  # samples
        self.waits = dict.fromkeys(WAITS, 0.0)  # seconds of answers, by where they were

    @classmethod
    async def open(cls, config: PoolConnectionConfig) -> "PoolConnection":
        secured = Security().get_connection_args("client")  # of `security.enable_tls`
        pool = await ConnectionPool(limit=4096, timeout=5, connection_args=secured)
        return cls(pool, config)

    def connections(self) -> int:
        """Open ones, to teachers and to the coordinator."""
        return int(self._pool.open) + len(self._askers)

    async def close(self) -> None:
        self.forget(list(self._askers))
        await self._pool.close()

    async def news(
        self,
        away: Callable[[str], None] = lambda why: None,
        figures: Callable[[], Mapping[str, float]] = dict,
    ) -> AsyncIterator[CoordinatorReply]:
        """What changes for this student, for ever, as soon as it does.

        The demand is announced first, and again when the coordinator was started anew. While
        nobody answers, `away` is told why and tries go on: the teachers that are known still
        serve, over wires of their own.
        """
        version, incarnation = -1, ""
        again = Backoff(_AGAIN_S, longest_s=_LONGEST_S)
        c = self._config
        how = {"at_most": c.at_most, "priority": c.priority, "floor": c.floor}
        while True:
            try:
                news = await self.coordinator(
                    "watch",
                    version=version,
                    incarnation=incarnation,
                    wait_s=_WATCH_S,
                    figures=figures(),
                )
                if not news:
                    await self.coordinator("demand", t_s=c.rules.t_s, **how)
                    yield CoordinatorReply([], {}, full=False, announced=True)
                    continue
            except (OSError, TimeoutError) as error:
                away(brief(error))
                await asyncio.sleep(again.wait_s() * random.uniform(0.5, 1.0))
                continue
            changes = from_builtins(PoolUpdate, news)
            version, incarnation = changes.version, changes.incarnation
            again.succeeded()
            known = [(lease, lease.info) for lease in changes.held if lease.info]
            ports = {lease.teacher: info.wire_port for lease, info in known}
            self.follow(ports, changes.gone, full=changes.full)
            given = [Teacher.from_lease(lease, info) for lease, info in known]
            yield CoordinatorReply(given, dict(changes.gone), changes.full)

    def follow(
        self, given: Mapping[str, int], gone: Collection[str], *, full: bool
    ) -> None:
        """Where new teachers answer, by address, and who is gone."""
        old = set(self._ports) if full else set(gone)
        self.forget(old - set(given))
        self._ports |= given

    def forget(self, teachers: Iterable[str]) -> None:
        """Close these connections as soon as nothing is awaited there."""
        for teacher in teachers:
            opening = self._askers.pop(teacher, None)
            if opening is None:
                continue
            if not opening.done():
                opening.cancel()
            elif not opening.cancelled() and opening.exception() is None:
                opening.result().retire()

    async def _asker(self, teacher: str) -> LabelClient:
        """The connection, made by whoever needs it first.

        Raises:
            OSError, TimeoutError: nobody answers there.
        """
        opening = self._askers.get(teacher)
        if opening is not None and opening.done():
            failed = opening.cancelled() or opening.exception() is not None
            if failed or not opening.result().usable:
                opening = None
        if opening is None:
            host = urlsplit(teacher).hostname or ""
            opening = asyncio.ensure_future(connect(host, self._ports[teacher]))
            self._askers[teacher] = opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # forgotten meanwhile
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
        """(N, classes) float32 logits of these samples; `fresh` ones are computed for this.

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
            asker = await self._asker(teacher)
        except (OSError, TimeoutError, KeyError) as error:  # KeyError: gone meanwhile
            raise Unreachable(f"no connection to it ({brief(error)})") from error
        sent_at = time.monotonic()
        try:
            answer = asker.ask(to_dict(asked), arrays)
            said, answered = await asyncio.wait_for(answer, config.rules.deadline_s)
        except TimeoutError:
            asker.transport.abort()  # it may lead nowhere; the next lease connects anew
            raise Unreachable(f"no answer within {config.rules.deadline_s:g} s") from None
        except OSError as error:
            raise Unreachable(f"its connection broke ({brief(error)})") from error
        except ProtocolError as error:
            raise Unusable(f"its answer cannot be read ({error})") from error
        if "error" in said:
            raise Unusable(f"it raised {said['error']}")
        self._count_waits(RequestTimes.from_answer(answered), time.monotonic() - sent_at)
        self.engines[teacher] = engine_of(answered)
        try:
            logits = decode(answered, config.classes)
        except ValueError as error:
            raise Unusable(brief(error)) from error
        trouble = _trouble(logits, (len(ids), config.classes))
        if trouble:
            raise Unusable(trouble)
        way = "reference" if views is None else "value"
        both = (*arrays.values(), *answered.values())
        self._carried[way] += sum(array.nbytes for array in both)
        self._answered[way] += len(ids)
        return logits

    def _count_waits(self, took: RequestTimes | None, whole_s: float) -> None:
        """Where an answer was while it was waited for."""
        if took is None:
            return
        for name, seconds in took._asdict().items():
            self.waits[name] += seconds
        self.waits["wire_s"] += max(0.0, whole_s - sum(took))

    def figures(self) -> dict[str, float]:
        """What the wires have counted, for people; no bytes where nothing went that way."""
        sizes = {
            f"bytes_per_sample_{way}": self._carried[way] / max(1, self._answered[way])
            for way in WAYS
        }
        return sizes | self.waits | {"labels": sum(self._answered.values())}

    async def coordinator(self, operation: str, **arguments: object) -> object:
        """One call about this student.

        Raises:
            OSError, TimeoutError: the scheduler is gone or silent.
        """
        remote = self._pool(self._config.coordinator)
        return await call_coordinator(
            remote, operation, CALL_S, student=self._config.student, **arguments
        )


def _trouble(logits: NDArray[np.float32], shape: tuple[int, int]) -> str:
    """Why an answer cannot be used; empty when it can."""
    if logits.shape != shape:
        return f"it answered with shape {logits.shape}, expected {shape}"
    bad = int((~np.isfinite(logits)).sum())
    return f"{bad} of {logits.size} numbers of its answer are not finite" if bad else ""
