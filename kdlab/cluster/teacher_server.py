"""A teacher: a model behind an RPC handler in a Dask worker.

The handler only queues; one inference thread computes. The same thread sends the lease
renewals, between batches, so a teacher whose inference hangs stops looking alive.

Join order is EDL-Dist's (section 3.1): register at the coordinator, deploy the model,
measure t_t, report ready, serve.
"""

import asyncio
import contextlib
import logging
import os
import queue
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol import to_serialize
from numpy.typing import NDArray

from kdlab.cluster import notebook_components
from kdlab.cluster.children import configured
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.wire import CALL_S, settle, within
from kdlab.data.images import ImageData
from kdlab.errors import TeacherRefused
from kdlab.models.model import Normalised, check_fit, file_sha256, load_weights

_MEASURE_S = 0.3
_QUIET_S = 0.5  # without a request, after goodbye: the readers know
_DRAIN_S = 10.0  # at most


@dataclass(slots=True)
class Request:
    epoch: int
    ids: NDArray[np.int64] | None
    views: NDArray[np.uint8] | None
    answer: Future[NDArray[np.float32]] = field(default_factory=Future)


class Inference:
    """The model and its thread's work: requests in, logits out."""

    def __init__(
        self, deployment: Deployment, weights: Path, threads: int, device: str
    ) -> None:
        torch.set_num_threads(threads)  # Dask's nanny exports OMP_NUM_THREADS=1
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device, self.deployment = device, deployment
        self.model = self._load(weights)
        self.data: ImageData | None = None
        self.t_t = 0.0  # samples/s while computing
        self.answered = 0

    def _load(self, weights: Path) -> Normalised:
        deployment = self.deployment
        model = deployment.model_spec().build(deployment.num_classes, deployment.shape[0])
        load_weights(model.net, weights, deployment.sha256)
        check_fit(model, deployment.shape, deployment.num_classes, "the teacher")
        model.eval()
        return model.requires_grad_(requires_grad=False).to(self.device)

    @torch.inference_mode()
    def logits(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(N, C, H, W) uint8 -> (N, classes) float32."""
        if not views.flags.writeable:  # Dask hands out read-only buffers
            views = views.copy()
        scores: torch.Tensor = self.model(torch.from_numpy(views).to(self.device))
        return scores.float().cpu().numpy()

    def measure(self) -> float:
        """t_t of EDL-Dist: samples/s when inputs are free (section 3.2)."""
        batch = np.zeros((self.deployment.batch, *self.deployment.shape), np.uint8)
        for _ in range(2):
            self.logits(batch)
        rounds, begin = 0, time.perf_counter()
        while rounds < 3 or time.perf_counter() - begin < _MEASURE_S:
            self.logits(batch)
            rounds += 1
        self.t_t = rounds * len(batch) / (time.perf_counter() - begin)
        return self.t_t

    def answer(self, request: Request) -> None:
        begin = time.perf_counter()
        try:
            views = request.views
            if views is None:
                assert request.ids is not None
                if self.data is None:
                    self.data = self.deployment.load_data()
                views = self.data.views(request.ids, request.epoch)
            logits = self.logits(views)
        except Exception as error:  # the reader is told, and sends it to somebody else
            request.answer.set_exception(error)
            return
        self.answered += 1
        rate = len(logits) / max(1e-9, time.perf_counter() - begin)
        self.t_t += 0.1 * (rate - self.t_t)
        request.answer.set_result(logits)


class TeacherServer(WorkerPlugin):
    name = "kdlab-teacher"

    def __init__(self, options: dict[str, Any], say: Callable[[str], None]) -> None:
        self.options, self.say = options, say
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.draining = False
        self.rejoining = False
        self.inference: Inference | None = None
        self.open_requests = 0
        self.last_activity = 0.0
        self.refused = ""
        self.renew_s = 1.5  # a quarter of the TTL, told by the coordinator

    async def setup(self, worker: Worker) -> None:
        self.worker, self.loop = worker, asyncio.get_running_loop()
        worker.handlers["kdlab_infer"] = self.infer
        # Loading takes seconds; the worker must answer its scheduler meanwhile.
        self.serving = asyncio.create_task(self._serve())

    async def infer(
        self, epoch: int, ids: bytes | None = None, views: Any = None
    ) -> dict[str, Any]:
        """Logits of a batch, given by value (views) or by reference (ids, epoch)."""
        request = Request(
            epoch, None if ids is None else np.frombuffer(ids, np.int64), views
        )
        self.open_requests += 1
        self.requests.put(request)
        try:
            logits = await asyncio.wrap_future(request.answer)
        finally:
            self.open_requests -= 1
            self.last_activity = time.monotonic()
        return {"logits": to_serialize(np.ascontiguousarray(logits))}

    async def teardown(self, worker: Worker) -> None:
        self.requests.put(None)  # or the inference thread would keep the process

    async def _serve(self) -> None:
        try:
            await self._deploy()
        except Exception as error:  # any failure to come up ends this teacher, told why
            self.refused = f"{type(error).__name__}: {error}"
            await self.worker.close()
            return
        await asyncio.to_thread(self._loop)

    async def _deploy(self) -> None:
        """Register, load what the pool serves (unless it is loaded), report ready."""
        deployment = await self._join()
        loaded = self.inference
        if loaded is None or loaded.deployment.fingerprint != deployment.fingerprint:
            loaded = await asyncio.to_thread(self._prepare, deployment)
        self.inference = loaded
        await self._report_ready(loaded)

    async def _join(self) -> Deployment:
        scheduler, address = self.worker.scheduler, self.worker.address
        while True:
            reply = await within(CALL_S, scheduler.kdlab_hello(address=address))
            if reply is not None:
                break
        self.renew_s = float(reply["renew_s"])
        deployment = Deployment.from_json(reply["deployment"])
        self.weights = Path(deployment.weights)
        if not await asyncio.to_thread(self._readable, deployment):
            self.weights = (
                Path(self.options["scratch"]) / f"{deployment.sha256}.safetensors"
            )
        if not await asyncio.to_thread(self._readable, deployment):
            raw = await within(300.0, scheduler.kdlab_weights())
            await asyncio.to_thread(self.weights.write_bytes, raw)
        return deployment

    def _readable(self, deployment: Deployment) -> bool:
        return self.weights.is_file() and file_sha256(self.weights) == deployment.sha256

    def _prepare(self, deployment: Deployment) -> Inference:
        notebook_components.accept(deployment.components)
        own = self.options.get("sha256")
        if own is not None and own != deployment.sha256:
            raise TeacherRefused(
                f"this teacher was started for model {own[:16]}, the pool serves "
                f"{deployment.fingerprint}"
            )
        inference = Inference(
            deployment, self.weights, self.options["threads"], self.options["device"]
        )
        if deployment.by_reference:
            inference.data = deployment.load_data()
        inference.measure()
        return inference

    async def _report_ready(self, inference: Inference) -> None:
        facts = {
            "name": self.worker.name,
            "pid": os.getpid(),
            "device": inference.device,
            "threads": self.options["threads"],
        }
        refusal = await within(
            CALL_S,
            self.worker.scheduler.kdlab_ready(
                address=self.worker.address,
                fingerprint=inference.deployment.fingerprint,
                t_t=inference.t_t,
                batch_s=inference.deployment.batch / inference.t_t,
                facts=facts,
            ),
        )
        if refusal:
            raise TeacherRefused(str(refusal))
        self.say(
            f"ready: serves {inference.deployment.model['type']} (weights "
            f"{inference.deployment.sha256[:16]}) at {inference.t_t:.0f} samples/s, "
            f"{inference.device}"
        )

    def _loop(self) -> None:
        """The inference thread: compute, and renew the lease between batches."""
        renewed = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                request = self.requests.get(timeout=self.renew_s / 2)
                if request is None:
                    return
                assert self.inference is not None
                self.inference.answer(request)
            if time.monotonic() - renewed >= self.renew_s and not self.draining:
                renewed = time.monotonic()
                asyncio.run_coroutine_threadsafe(self._renew(), self.loop)

    async def _renew(self) -> None:
        if self.rejoining:
            return
        inference = self.inference
        assert inference is not None
        try:
            known = await within(
                CALL_S,
                self.worker.scheduler.kdlab_renew(
                    address=self.worker.address,
                    t_t=inference.t_t,
                    answered=inference.answered,
                ),
            )
            if not known and not self.draining:
                # It hung and expired, or the pool serves something else now.
                self.rejoining = True
                await self._deploy()
        except (OSError, TimeoutError) as error:
            logging.getLogger("kdlab").warning("lease not renewed: %s", error)
        except Exception as error:  # it cannot serve (any more): it ends, told why
            self.refused = f"{type(error).__name__}: {error}"
            await self.worker.close()
        finally:
            self.rejoining = False

    async def withdraw(self) -> None:
        """Polite leave: goodbye first, then every request that still comes is answered.

        The coordinator tells the readers at once; a request that was on its way then still
        finds an answer, so nothing has to be sent again.
        """
        if self.draining:
            return
        self.draining = True
        with contextlib.suppress(OSError, TimeoutError):
            await within(
                2.0, self.worker.scheduler.kdlab_leave(address=self.worker.address)
            )
        self.last_activity = time.monotonic()
        deadline = self.last_activity + _DRAIN_S
        while time.monotonic() < deadline and (
            self.open_requests or time.monotonic() - self.last_activity < _QUIET_S
        ):
            await asyncio.sleep(_QUIET_S / 10)  # between looks at the two facts above
        self.requests.put(None)
        answered = self.inference.answered if self.inference else 0
        self.say(f"withdrawn after {answered} batches")
        await self.worker.close()


async def serve(
    scheduler: str, options: dict[str, Any], say: Callable[[str], None] = lambda line: None
) -> str:
    """Run one teacher until it is told to leave; why it was refused, or empty.

    Dask's files go to a folder under `options["scratch"]`, which its owner removes, or to a
    temporary one that is removed here.
    """
    settle()
    logging.getLogger("distributed").setLevel(logging.WARNING)
    base = options.get("scratch")
    if base is not None:
        Path(base).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kdlab-teacher-", dir=base) as scratch:
        plugin = TeacherServer(options | {"scratch": scratch}, say)
        worker = Worker(
            scheduler,
            nthreads=1,
            name=options["name"],
            host=options["host"],
            dashboard=False,
            local_directory=scratch,
            memory_limit=0,
            plugins=(plugin,),
        )
        async with worker:
            loop = asyncio.get_running_loop()
            leaving: list[asyncio.Task[None]] = []
            for sign in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(
                    sign, lambda: leaving.append(asyncio.create_task(plugin.withdraw()))
                )
            await worker.finished()
    return plugin.refused


if __name__ == "__main__":
    chosen = configured()
    reason = asyncio.run(serve(chosen["scheduler"], chosen))
    if reason:
        raise SystemExit(f"this teacher cannot serve: {reason}")
