"""The thread that computes with a teacher's model: requests in, logits out.

Requests that lie in the queue together are computed together, up to the batch this
machine computes best (micro-batching), and answered one by one. A request is answered by
the model it was asked of: models never mix within a batch, nor while another is loaded.
"""

import queue
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster.teachers.loaded_model import LoadedModel
from kdlab.cluster.transport.messages import RequestTimes
from kdlab.models.device_feed import PendingResult

_RENEWED_WITHIN_S = 0.2  # between looks whether the lease has to be renewed


@dataclass(slots=True)
class Request:
    epoch: int
    ids: NDArray[np.int64] | None
    views: NDArray[np.uint8] | NDArray[np.float32] | None
    answer: Callable[[NDArray[np.float32] | Exception], None]  # called once, here
    by: "Inference"  # the model it was asked of: another may be loaded meanwhile
    made: Future[NDArray[np.uint8]] | None = None  # views under way (`Inference.expect`)
    begun: NDArray[np.bool_] | None = None  # of which samples; None is all
    fresh: bool = False  # what was kept does not count
    arrived: float = field(default_factory=time.perf_counter)
    took: RequestTimes = field(default_factory=RequestTimes)  # known once it is answered
    engine: str = "eager fp32"  # that computed it; known once it is answered

    @property
    def size(self) -> int:
        given = self.ids if self.views is None else self.views
        assert given is not None
        return len(given)


@dataclass(slots=True)
class UnderWay:
    """Requests whose answers the device computes."""

    requests: list[Request]
    found: list[tuple[NDArray[np.float32] | None, NDArray[np.bool_] | None]]  # kept ones
    counts: list[int]  # samples that are computed, of each request
    computed: PendingResult | None  # None: everything was kept
    engine: str  # that computes
    begin: float
    viewed: float  # when its views were ready
    extra_s: float  # of computing for nobody

    @property
    def is_here(self) -> bool:
        return self.computed is None or self.computed.is_ready


class Inbox:
    """Requests that wait for the inference thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._held: Request | None = None  # taken from the queue, and does not join

    def put(self, request: Request | None) -> None:
        """None asks for the end."""
        self._queue.put(request)

    def take(self, timeout_s: float) -> list[Request] | None:
        """The next request and those that fit beside it; [] after the time-out.

        All are of one model: one that is asked of another waits for the next turn. None
        when the end was asked for.
        """
        first, self._held = self._held, None
        if first is None:
            try:
                first = self._queue.get(timeout=timeout_s)
            except queue.Empty:
                return []
            if first is None:
                return None
        taken, count = [first], first.size
        while count < first.by.best_batch:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)  # the end comes after what was taken
                break
            if more.by is not first.by or count + more.size > first.by.best_batch:
                self._held = more
                break
            taken.append(more)
            count += more.size
        return taken


class Inference(LoadedModel):
    """Answers requests."""

    answered = 0
    _busy_until = 0.0  # when the last requests were answered
    alive: Callable[[], None] = staticmethod(lambda: None)  # while views are waited for

    @cached_property
    def _makes_views(self) -> ThreadPoolExecutor:
        """A thread of its own: views of another model's requests may come from far away."""
        return ThreadPoolExecutor(1, thread_name_prefix="views-of-requests")

    def begun(self, requests: list[Request]) -> list[UnderWay]:
        """Have the device compute them together; a failure is the answer to each, at once.

        On a GPU the views of the next ones can be made and copied meanwhile.
        """
        begin = time.perf_counter()
        try:
            found = [self._kept(request) for request in requests]
            inputs = [
                self._inputs(request, missing)
                for request, (_, missing) in zip(requests, found, strict=True)
            ]
            viewed = time.perf_counter()
            kinds = {views.dtype for views in inputs if len(views)}
            if len(kinds) > 1:  # one student sends uint8, another float32
                return self._each_begun(requests)
            computed = None
            if wanted := [views for views in inputs if len(views)]:
                computed = self._asked(wanted, self._ask)
                if computed.shape[0] != (count := sum(map(len, wanted))):  # whose is whose?
                    raise ValueError(
                        f"the model answered with shape {computed.shape} for {count} samples"
                    )
        except Exception as error:  # the reader is told, and sends it to somebody else
            if len(requests) == 1:
                requests[0].answer(error)
                return []
            return self._each_begun(requests)  # one that fails must not fail its neighbours
        extra_s = 0.0 if self.engines is None else self.engines.in_use.extra_s
        counts = [len(views) for views in inputs]
        # Asked for after it computed: an engine may be given up at this very request.
        engine = self.in_use
        return [UnderWay(requests, found, counts, computed, engine, begin, viewed, extra_s)]

    def _each_begun(self, requests: list[Request]) -> list[UnderWay]:
        left = []
        for request in requests:
            for one in self.begun([request]):
                if one.is_here:
                    self.finish(one)
                else:
                    left.append(one)
        return left

    def finish(self, done: UnderWay) -> None:
        """Answer what was begun; waits for the device."""
        requests, count = done.requests, sum(done.counts)
        computed = np.empty((0, self.deployment.num_classes), np.float32)
        try:
            if done.computed is not None:
                computed = done.computed.get()
        except Exception as error:  # the device failed meanwhile
            for request in requests:
                request.answer(error)
            return
        now = time.perf_counter()
        # What was begun earlier had the device first.
        computed_s = now - max(done.viewed, self._busy_until)
        busy_s = now - max(done.begin, self._busy_until) - done.extra_s
        self._busy_until = now
        for request in requests:
            queued_s, views_s = done.begin - request.arrived, done.viewed - done.begin
            request.took = RequestTimes(queued_s, views_s, computed_s)
            request.engine = done.engine
        asked = sum(request.size for request in requests)
        # A rate of what was computed, with its views; a few that were missing say little.
        if count == asked or count >= max(1, self.min_batch):
            self.timed(count, busy_s)
        start = 0
        for request, (logits, missing), rows in zip(
            requests, done.found, done.counts, strict=True
        ):
            new = computed[start : start + rows]
            start += rows
            # What an engine said that was given up meanwhile is not kept.
            keep = done.engine == self.in_use
            request.answer(self._completed(request, logits, missing, new, keep=keep))
        self.answered += len(requests)

    def _kept(
        self, request: Request
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_] | None]:
        """Answers that another student has paid for, and which are missing; None is all."""
        if self.kept is None or request.ids is None or request.fresh:
            return None, None
        logits, known = self.kept.find(request.epoch, request.ids)
        self.kept.asked += len(known)
        self.kept.found += int(known.sum())
        return (logits, ~known) if known.any() else (None, None)

    def _completed(
        self,
        request: Request,
        logits: NDArray[np.float32] | None,
        missing: NDArray[np.bool_] | None,
        new: NDArray[np.float32],
        *,
        keep: bool,
    ) -> NDArray[np.float32]:
        """The whole answer; what is new of it is kept for others."""
        if keep and self.kept is not None and request.ids is not None and len(new):
            ids = request.ids if missing is None else request.ids[missing]
            self.kept.keep(request.epoch, ids, new)
        if logits is None:
            return new
        logits[missing] = new
        return logits

    def expect(self, request: Request) -> Request:
        """One that arrived: views that take long are begun while another is computed."""
        ids, data = request.ids, self.data
        if request.views is None and ids is not None and data is not None and data.slow:
            if self.kept is not None and not request.fresh:
                request.begun = ~self.kept.find(request.epoch, ids)[1]
                ids = ids[request.begun]
            if len(ids):
                request.made = self._makes_views.submit(data.views, ids, request.epoch)
        return request

    def _inputs(
        self, request: Request, missing: NDArray[np.bool_] | None
    ) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Views of the samples that are missing; None is all of them."""
        if request.views is not None:
            return request.views
        ids = request.ids
        assert ids is not None
        assert self.data is not None  # checked on arrival
        every = np.ones(len(ids), np.bool_)
        missing = every if missing is None else missing
        if not missing.any():
            return np.empty((0, *self.deployment.shape), np.uint8)
        begun = every if request.begun is None else request.begun
        if request.made is None or (missing & ~begun).any():
            # Nothing was begun, or it was kept then and has made room for others since.
            if not self.data.slow:
                return self.data.views(ids[missing], request.epoch)
            begun = missing
            request.made = self._makes_views.submit(
                self.data.views, ids[missing], request.epoch
            )
        while not wait([request.made], _RENEWED_WITHIN_S).done:
            self.alive()  # what it needs may come from far away
        return request.made.result()[missing[begun]]


def compute(inbox: Inbox, renew: Callable[[], None], wait_s: Callable[[], float]) -> None:
    """The inference thread, until the inbox is told to end.

    Args:
        inbox: requests of any models.
        renew: called between batches, and while views are waited for.
        wait_s: for a request, at most.
    """
    waiting = deque[UnderWay]()  # a device is at work on them

    def finish() -> None:
        done = waiting.popleft()
        done.requests[0].by.finish(done)

    def look() -> None:
        while waiting and waiting[0].is_here:
            finish()
        renew()

    while True:
        taken = inbox.take(0.0 if waiting else wait_s())
        look()
        before = len(waiting)
        if taken:
            asked = taken[0].by
            asked.alive = look
            begun = asked.begun(taken)
            before = len(waiting)  # some may have been answered meanwhile
            waiting.extend(begun)
        # The device has the next ones by now: it works on while these are answered.
        for _ in range(before):
            finish()
        look()
        if taken is None:
            return
