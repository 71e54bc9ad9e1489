"""The teacher's model and the thread that computes with it: requests in, logits out.

Requests that lie in the queue together are computed together, up to the batch this
machine computes best (micro-batching), and answered one by one. A request is answered by
the model it was asked of: models never mix within a batch, nor while another is loaded.
"""

import logging
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kdlab.cluster.deployment import Deployment
from kdlab.cluster.limits import free_memory
from kdlab.cluster.teachers.engines_of_teacher import EnginesOfTeacher, few_enough
from kdlab.cluster.teachers.kept_answers import KeptAnswers
from kdlab.cluster.teachers.probe import probe_images, proof_of
from kdlab.cluster.teachers.running_rate import RunningRate
from kdlab.cluster.wires.messages import Took
from kdlab.data.images import ImageData
from kdlab.errors import DataError, TeacherRefused
from kdlab.models.device_feed import DeviceFeed, OnItsWay
from kdlab.models.engines import Asked
from kdlab.models.ensemble import Combination, combined
from kdlab.models.memory import keep_freed_memory
from kdlab.models.model import check_fit, load_weights
from kdlab.papers.edl_dist.request_sizes import best_and_least, tried

_MEASURE_S = 0.4  # at least once each size
_RENEWED_WITHIN_S = 0.2  # between looks whether the lease has to be renewed
_KEPT_BYTES = 2**28  # of answers, at most, and this share of the memory that is free
_KEPT_SHARE = 0.1
_EXAMPLES = 32  # views that engines are measured with, at most
_AS_GOOD = 0.95  # of the rate: then the larger batch wins
_GATHERED = 1024  # samples of several students together, at most
_GATHERED_S = 0.1  # at most: so long a small request may have to wait for what is computed


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
    took: Took = field(default_factory=Took)  # known once it is answered
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
    computed: OnItsWay | None  # None: everything was kept
    engine: str  # that computes
    begin: float
    viewed: float  # when its views were ready
    extra_s: float  # of computing for nobody

    @property
    def is_here(self) -> bool:
        return self.computed is None or self.computed.is_here


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


class Inference:
    def __init__(
        self,
        deployment: Deployment,
        weights: list[Path],
        threads: int,
        device: str,
        number: int = 0,
    ) -> None:
        keep_freed_memory()
        torch.set_num_threads(threads)  # Dask's nanny exports OMP_NUM_THREADS=1
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            device = f"cuda:{number % torch.cuda.device_count()}"
        self.device, self.deployment, self.weights = device, deployment, weights
        self.feed = DeviceFeed(torch.device(device))
        self._pace: RunningRate | None = None  # begins with what was measured
        self._busy_until = 0.0  # when the last requests were answered
        self.model = self._load(weights)
        self.engines: EnginesOfTeacher | None = None  # None: PyTorch as it is
        self._ask: Asked = self.model
        self.data: ImageData | None = None
        self.kept: KeptAnswers | None = None  # None where none are shared
        self._makes_views = ThreadPoolExecutor(1, thread_name_prefix="views-of-requests")
        self.t_t = 0.0  # samples/s while computing
        self.best_batch = deployment.batch
        self.min_batch = 1  # samples: its efficiency falls off below
        self.answered = 0
        self.alive: Callable[[], None] = lambda: None  # called while views are waited for

    def _load(self, weights: list[Path]) -> nn.Module:
        deployment, members = self.deployment, []
        specs = deployment.model_specs()
        for spec, path, known in zip(specs, weights, deployment.members, strict=True):
            member = spec.build(deployment.num_classes, deployment.shape[0])
            load_weights(member.net, path, known.sha256)
            members.append(member)
        how = deployment.combination or Combination.of(
            [m.weight for m in deployment.members]
        )
        model = combined(members, how)
        check_fit(model, deployment.shape, deployment.num_classes, "the teacher")
        model.eval()
        return model.requires_grad_(requires_grad=False).to(self.device)

    @torch.inference_mode()
    def _asked(self, views: Sequence[NDArray[Any]], ask: Asked) -> OnItsWay:
        """(N, C, H, W) uint8, or float32 on the 0..1 scale -> (all N together, classes)."""
        pixels = self.feed.joined(views)
        if pixels.dtype != torch.uint8:
            pixels = pixels * 255  # what the models' normalisation expects
        return OnItsWay(ask(pixels).float())

    @property
    def engine(self) -> str | None:
        """What computes and what was tried, for people; None where it was not to be chosen."""
        return None if self.engines is None else self.engines.described

    @property
    def in_use(self) -> str:
        """The engine that computes now, and its precision: `eager fp32`."""
        return "eager fp32" if self.engines is None else self.engines.in_use.chosen.label

    def choose_engine(self, say: Callable[[str], None]) -> None:
        """Take the fastest engine that agrees, where the deployment leaves it to the teacher."""
        if self.deployment.engine == "eager":
            return
        views = torch.from_numpy(self._examples()).to(self.device)

        def changed(gain: float) -> None:
            self.t_t *= gain
            self._pace = None
            if self.kept is not None:  # labels of two precisions are not mixed
                self.kept.clear()
            say(f"computes with {self.engine}")

        self.engines = EnginesOfTeacher(
            self.model,
            self.deployment,
            torch.get_num_threads(),
            few_enough(self.model, views),
            changed,
        )
        self._ask = self.engines.in_use
        say(f"computes with {self.engine}")

    def _examples(self) -> NDArray[np.uint8]:
        """Views of the data, where it is here; else made-up images."""
        count = min(self.deployment.batch, _EXAMPLES)
        if self.data is None:
            shape = self.deployment.shape
            return np.resize(probe_images(shape), (count, *shape))
        views: NDArray[np.uint8] = self.data.views(self.data.train[:count], 0)
        return views

    def probe(self) -> list[list[float]]:
        """Its answer to the probe images: the proof that it is the right model."""
        ask = self.model if self.engines is None else self.engines.in_use.alone
        return proof_of(self._asked([probe_images(self.deployment.shape)], ask).get())

    def measure(self) -> None:
        """t_t of EDL-Dist: samples/s when inputs are free (3.2), and at which batch.

        Sizes take turns, so that a drift of the machine meets all of them; none is larger than
        one that took longer than a part may.
        """

        def prepared(size: int) -> float:
            self._seconds(size)  # the first call of a shape prepares things
            return self._seconds(size)

        first = tried(self.deployment.batch, prepared)
        seconds = {size: [took] for size, took in first.items()}
        begin = time.perf_counter()
        while time.perf_counter() - begin < _MEASURE_S:
            for size, taken in seconds.items():
                taken.append(self._seconds(size))
        each = {size: median(taken) for size, taken in seconds.items()}
        self.best_batch, self.min_batch = best_and_least(each)
        self.t_t = self.best_batch / each[self.best_batch]
        if self.best_batch == self.deployment.batch:
            self._measure_gathered()

    def _measure_gathered(self) -> None:
        """Whether requests of several students are worth being computed together."""
        while (size := 2 * self.best_batch) <= _GATHERED and size / self.t_t <= _GATHERED_S:
            try:
                self._seconds(size)  # prepares
            except torch.OutOfMemoryError:
                return
            taken = [
                (self._seconds(self.best_batch), self._seconds(size)) for _ in range(3)
            ]
            gain = median(2 * one / two for one, two in taken)
            if gain * _AS_GOOD < 1:
                return
            self.best_batch, self.t_t = size, self.t_t * gain

    def load_data(self) -> None:
        """The data set, where samples come by reference.

        Raises:
            TeacherRefused, DataError: it is not here, or is another one; not where those
                that lack it get pixels.
        """
        if not self.deployment.by_reference:
            return
        try:
            self.data = self.deployment.load_data()
            if self.deployment.share_answers:
                self.kept = KeptAnswers(
                    self.data.ids_below,
                    self.deployment.num_classes,
                    min(_KEPT_BYTES, int(_KEPT_SHARE * free_memory())),
                )
        except (TeacherRefused, DataError) as error:
            if not self.deployment.or_value:
                raise
            logging.getLogger("kdlab").warning("served by value: %s", error)

    def here(self) -> float:
        """Share of the data that lies on this machine; 0 where it was not found at all."""
        lacks = 0.0 if self.deployment.by_reference else 1.0
        return lacks if self.data is None else self.data.here()

    def _seconds(self, size: int) -> float:
        """How long the engine alone takes: made-up images say nothing about its answers."""
        batch = np.zeros((size, *self.deployment.shape), np.uint8)
        begin = time.perf_counter()
        ask = self._ask if self.engines is None else self.engines.first.ask
        self._asked([batch], ask).get()
        return time.perf_counter() - begin

    def answer(self, requests: list[Request]) -> None:
        """Compute them together; a failure is the answer to each."""
        for under_way in self.begun(requests):
            self.finish(under_way)

    def begun(self, requests: list[Request]) -> list[UnderWay]:
        """Have the device compute them together; what fails is answered so at once.

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
            request.took = Took(queued_s, views_s, computed_s)
            request.engine = done.engine
        asked = sum(request.size for request in requests)
        # A rate of what was computed, with its views; a few that were missing say little.
        if count == asked or count >= max(1, self.min_batch):
            if self._pace is None:
                size = max(1, self.best_batch)
                self._pace = RunningRate(size, size / max(self.t_t, 1e-9))
            self.t_t = self._pace.add(count, busy_s)
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
        self.kept.count(len(known), int(known.sum()))
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
