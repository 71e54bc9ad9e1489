"""The thread that computes with a teacher's model: requests in, logits out.

Requests that are queued together are computed together, up to the batch size that is best
on this machine (micro-batching), and answered one by one. The model that was asked answers a
request: models never mix within a batch, nor while another one is loaded.
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

_RENEWED_WITHIN_S = 0.2  # between checks whether the lease is due


@dataclass(slots=True)
class Request:
    epoch: int
    ids: NDArray[np.int64] | None
    views: NDArray[np.uint8] | NDArray[np.float32] | None
    answer: Callable[[NDArray[np.float32] | Exception], None]  # called once, by compute
    by: "Inference"  # the model that was asked; another may be loaded meanwhile
    pending: Future[NDArray[np.uint8]] | None = None  # its views (`Inference.expect`)
    begun: NDArray[np.bool_] | None = None  # samples in `pending`; None: all
    fresh: bool = False  # not to be answered from the cache
    arrived: float = field(default_factory=time.perf_counter)
    took: RequestTimes = field(default_factory=RequestTimes)  # set with the answer
    engine: str = "eager fp32"  # that computed it; set with the answer

    @property
    def size(self) -> int:
        inputs = self.ids if self.views is None else self.views
        assert inputs is not None
        return len(inputs)


@dataclass(slots=True)
class UnderWay:
    """A batch of requests that the device computes."""

    requests: list[Request]
    cached: list[tuple[NDArray[np.float32] | None, NDArray[np.bool_] | None]]  # of each
    counts: list[int]  # samples to compute of each request
    computed: PendingResult | None  # None: all answers were cached
    engine: str  # that computes them
    begin: float
    viewed: float  # when its views were ready
    extra_s: float  # of computing what no request needs

    @property
    def is_done(self) -> bool:
        return self.computed is None or self.computed.is_ready


class Inbox:
    """Queue of requests for the inference thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._held: Request | None = None  # taken from the queue, but not for this batch

    def put(self, request: Request | None) -> None:
        """Queue a request; None ends the inference thread."""
        self._queue.put(request)

    def take(self, timeout_s: float) -> list[Request] | None:
        """Take the next request and those that fit into its batch; [] after the timeout.

        All are for one model: a request for another one waits for the next call. None
        when the thread is to end.
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
                self._queue.put(None)  # the end comes after these requests
                break
            if more.by is not first.by or count + more.size > first.by.best_batch:
                self._held = more
                break
            taken.append(more)
            count += more.size
        return taken


class Inference(LoadedModel):
    """A loaded model that answers requests."""

    answered = 0
    _busy_until = 0.0  # when the last requests were answered
    alive: Callable[[], None] = staticmethod(lambda: None)  # called while views are awaited

    @cached_property
    def _makes_views(self) -> ThreadPoolExecutor:
        """Thread that makes views; separate, since another model's views may come from far away."""
        return ThreadPoolExecutor(1, thread_name_prefix="views-of-requests")

    def begin(self, requests: list[Request]) -> list[UnderWay]:
        """Start computing requests as one batch; an error is the answer to each, at once.

        On a GPU the views of the next batch can be made and copied meanwhile.
        """
        begin = time.perf_counter()
        try:
            cached = [self._find_cached(request) for request in requests]
            inputs = [
                self._inputs(request, missing)
                for request, (_, missing) in zip(requests, cached, strict=True)
            ]
            viewed = time.perf_counter()
            kinds = {views.dtype for views in inputs if len(views)}
            if len(kinds) > 1:  # one student sends uint8, another float32
                return self._begin_each(requests)
            computed = None
            if wanted := [views for views in inputs if len(views)]:
                computed = self._predict(wanted, self._ask)
                if computed.shape[0] != (count := sum(map(len, wanted))):  # rows of which?
                    raise ValueError(
                        f"the model answered with shape {computed.shape} for {count} samples"
                    )
        except Exception as error:  # the reader gets it and asks another teacher
            if len(requests) == 1:
                requests[0].answer(error)
                return []
            return self._begin_each(requests)  # one that fails must not fail its neighbours
        extra_s = 0.0 if self.engines is None else self.engines.in_use.extra_s
        counts = [len(views) for views in inputs]
        # Read after computing: this very request may make the model give up its engine.
        engine = self.in_use
        work = UnderWay(requests, cached, counts, computed, engine, begin, viewed, extra_s)
        return [work]

    def _begin_each(self, requests: list[Request]) -> list[UnderWay]:
        left = []
        for request in requests:
            for batch in self.begin([request]):
                if batch.is_done:
                    self.finish(batch)
                else:
                    left.append(batch)
        return left

    def finish(self, done: UnderWay) -> None:
        """Answer the requests of a batch; waits for the device."""
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
        # The device computed earlier batches first.
        computed_s = now - max(done.viewed, self._busy_until)
        busy_s = now - max(done.begin, self._busy_until) - done.extra_s
        self._busy_until = now
        for request in requests:
            queued_s, views_s = done.begin - request.arrived, done.viewed - done.begin
            request.took = RequestTimes(queued_s, views_s, computed_s)
            request.engine = done.engine
        asked = sum(request.size for request in requests)
        # The rate counts computed samples with their views; a few missing ones say little.
        if count == asked or count >= max(1, self.min_batch):
            self.timed(count, busy_s)
        start = 0
        for request, (logits, missing), rows in zip(
            requests, done.cached, done.counts, strict=True
        ):
            new = computed[start : start + rows]
            start += rows
            # Answers of an engine that was given up meanwhile are not cached.
            keep = done.engine == self.in_use
            request.answer(self._completed(request, logits, missing, new, keep=keep))
        self.answered += len(requests)

    def _find_cached(
        self, request: Request
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_] | None]:
        """Cached answers of a request, and which samples are missing; (None, None): all."""
        if self.cache is None or request.ids is None or request.fresh:
            return None, None
        logits, known = self.cache.find(request.epoch, request.ids)
        self.cache.asked += len(known)
        self.cache.hits += int(known.sum())
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
        """Merge cached and new logits of a request, and cache the new ones."""
        if keep and self.cache is not None and request.ids is not None and len(new):
            ids = request.ids if missing is None else request.ids[missing]
            self.cache.put(request.epoch, ids, new)
        if logits is None:
            return new
        logits[missing] = new
        return logits

    def expect(self, request: Request) -> Request:
        """Start making slow views of a request that arrived, while others are computed."""
        ids, data = request.ids, self.data
        if request.views is None and ids is not None and data is not None and data.slow:
            if self.cache is not None and not request.fresh:
                request.begun = ~self.cache.find(request.epoch, ids)[1]
                ids = ids[request.begun]
            if len(ids):
                request.pending = self._makes_views.submit(data.views, ids, request.epoch)
        return request

    def _inputs(
        self, request: Request, missing: NDArray[np.bool_] | None
    ) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Views of the missing samples of a request; None: of all."""
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
        if request.pending is None or (missing & ~begun).any():
            # Nothing was begun, or an answer that was cached then has been dropped since.
            if not self.data.slow:
                return self.data.views(ids[missing], request.epoch)
            begun = missing
            request.pending = self._makes_views.submit(
                self.data.views, ids[missing], request.epoch
            )
        while not wait([request.pending], _RENEWED_WITHIN_S).done:
            self.alive()  # the views may come from far away
        return request.pending.result()[missing[begun]]


def compute(inbox: Inbox, renew: Callable[[], None], wait_s: Callable[[], float]) -> None:
    """Run the inference thread until the inbox ends it.

    Args:
        inbox: requests for any models.
        renew: called between batches, and while views are awaited.
        wait_s: most seconds to wait for a request.
    """
    waiting = deque[UnderWay]()  # batches that the device computes

    def finish() -> None:
        done = waiting.popleft()
        done.requests[0].by.finish(done)

    def finish_ready() -> None:
        while waiting and waiting[0].is_done:
            finish()
        renew()

    while True:
        taken = inbox.take(0.0 if waiting else wait_s())
        finish_ready()
        before = len(waiting)
        if taken:
            model = taken[0].by
            model.alive = finish_ready
            begun = model.begin(taken)
            before = len(waiting)  # some may have been answered meanwhile
            waiting.extend(begun)
        # The device computes the next ones while these are answered.
        for _ in range(before):
            finish()
        finish_ready()
        if taken is None:
            return
