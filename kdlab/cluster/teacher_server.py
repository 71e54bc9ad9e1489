"""A teacher: a model behind a Dask worker and a wire of its own (label_wire.py).

The handler only queues; one inference thread computes (inference.py). The same thread
sends the lease renewals, between batches, so a teacher whose inference hangs stops
looking alive.

Join order is EDL-Dist's (section 3.1): register at the coordinator, deploy the model,
measure t_t, report ready with a proof that it is the right model, serve.
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
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from numpy.typing import NDArray

from kdlab.cluster import notebook_components, security
from kdlab.cluster.children import configured, give_way
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.inference import Inference, Request
from kdlab.cluster.label_wire import Arrays, Reply, listen, port_of
from kdlab.cluster.messages import check, encode
from kdlab.cluster.wire import CALL_S, settle, within
from kdlab.errors import TeacherRefused
from kdlab.models.model import file_sha256

_QUIET_S = 0.5  # without a request, after goodbye: the readers know
_DRAIN_S = 10.0  # at most


class TeacherServer(WorkerPlugin):
    name = "kdlab-teacher"

    def __init__(self, options: dict[str, Any], say: Callable[[str], None]) -> None:
        self.options, self.say = options, say
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.draining = False
        self.rejoining = False
        self.ready = False
        self.inference: Inference | None = None
        self.open_requests = 0
        self.last_activity = 0.0
        self.refused = ""
        self.renew_s = 1.5  # a quarter of the TTL, told by the coordinator
        self.dark_until = 0.0  # chaos: until then it is as if its network were cut

    async def setup(self, worker: Worker) -> None:
        self.worker, self.loop = worker, asyncio.get_running_loop()
        # At the address the readers are told: a name may stand for several.
        host = urlsplit(worker.address).hostname or self.options["host"]
        self.wire = await listen(host, self.infer, self._largest_request)
        if self.options.get("chaos"):
            worker.handlers["kdlab_partition"] = self.partition
        # Loading takes seconds; the worker must answer its scheduler meanwhile.
        self.serving = asyncio.create_task(self._serve())

    def infer(self, asked: dict[str, Any], inputs: Arrays, reply: Reply) -> None:
        """Logits of a batch, given by value (views) or by reference (ids, epoch)."""
        inference = self.inference
        try:
            if inference is None:
                raise TeacherRefused("it has not loaded its model yet")
            deployment = inference.deployment
            check(asked, inputs, deployment.shape, deployment.num_classes)
        except (TeacherRefused, ValueError) as error:
            reply(error)
            return

        def answered(logits: NDArray[np.float32] | Exception) -> None:
            """In the inference thread."""
            answer: Arrays | Exception
            if isinstance(logits, Exception):
                answer = logits
            else:
                try:
                    answer = encode(logits, asked["replies"], asked["top_k"])
                except Exception as error:  # a model may answer anything
                    answer = error
            self.loop.call_soon_threadsafe(answer_it, answer)

        def answer_it(answer: Arrays | Exception) -> None:
            left = self.dark_until - time.monotonic()
            if left > 0:
                self.loop.call_later(left, answer_it, answer)
                return
            self.open_requests -= 1
            self.last_activity = time.monotonic()
            reply(answer)

        self.open_requests += 1
        self.requests.put(
            Request(asked["epoch"], inputs.get("ids"), inputs.get("views"), answered)
        )

    def _largest_request(self) -> int:
        """Bytes: the images of a student's batch as float32, and no more."""
        if self.inference is None:
            return 0
        deployment = self.inference.deployment
        return 4 * deployment.batch * prod(deployment.shape) + 4096

    async def partition(self, seconds: float) -> None:
        """Chaos: neither answers nor renewals leave this teacher for so long."""
        self.dark_until = time.monotonic() + seconds

    async def teardown(self, worker: Worker) -> None:
        self.requests.put(None)  # or the inference thread would keep the process
        self.wire.close()

    async def _serve(self) -> None:
        try:
            await self._deploy()
        except Exception as error:  # any failure to come up ends this teacher, told why
            self.refused = f"{type(error).__name__}: {error}"
            await self.worker.close()
            return
        try:
            await asyncio.to_thread(self._loop)
        except Exception as error:  # it would hold its connection and never answer
            self.refused = f"its inference ended: {type(error).__name__}: {error}"
            await self.worker.close()

    async def _deploy(self) -> None:
        """Register, load what the pool serves (unless it is loaded), report ready."""
        self.ready = False  # until it is: a renewal tries again
        while not self.ready:
            deployment = await self._join()
            loaded = self.inference
            if loaded is None or loaded.deployment.fingerprint != deployment.fingerprint:
                weights = await self._weights(deployment)
                loaded = await asyncio.to_thread(self._prepare, deployment, weights)
                self._forget_other_than(deployment)
            self.inference = loaded
            self.ready = await self._report_ready(loaded)

    def _forget_other_than(self, deployment: Deployment) -> None:
        """Copies of weights that are not served any more."""
        served = {member["sha256"] for member in deployment.members}
        for path in Path(self.options["scratch"]).glob("*.safetensors"):
            if path.stem not in served:
                path.unlink(missing_ok=True)

    async def _join(self) -> Deployment:
        scheduler, address = self.worker.scheduler, self.worker.address
        loaded = self.inference.deployment.to_json() if self.inference else None
        while True:
            reply = await within(
                CALL_S, scheduler.kdlab_hello(address=address, serves=loaded)
            )
            if reply is not None:
                break
        self.renew_s = float(reply["renew_s"])
        return Deployment.from_json(reply["deployment"])

    async def _weights(self, deployment: Deployment) -> list[Path]:
        """Files that hold the weights: their own paths, or copies from the coordinator."""
        found = []
        for number, member in enumerate(deployment.members):
            sha256 = member["sha256"]
            path = Path(member["weights"])
            if not await asyncio.to_thread(_readable, path, sha256):
                path = Path(self.options["scratch"]) / f"{sha256}.safetensors"
            if not await asyncio.to_thread(_readable, path, sha256):
                call = self.worker.scheduler.kdlab_weights(number=number)
                raw = await within(300.0, call)
                await asyncio.to_thread(path.write_bytes, raw)
            found.append(path)
        return found

    def _prepare(self, deployment: Deployment, weights: list[Path]) -> Inference:
        notebook_components.accept(deployment.components)
        own = self.options.get("sha256")
        served = "+".join(member["sha256"] for member in deployment.members)
        if own is not None and own != served:
            raise TeacherRefused(
                f"this teacher was started for model {own[:16]}, the pool serves "
                f"{deployment.fingerprint}"
            )
        inference = Inference(
            deployment, weights, self.options["threads"], self.options["device"]
        )
        if deployment.by_reference:
            inference.data = deployment.load_data()
        inference.measure()
        return inference

    async def _report_ready(self, inference: Inference) -> bool:
        """Whether it is accepted; else the pool has something else to load by now."""
        facts = {
            "name": self.worker.name,
            "pid": os.getpid(),
            "device": inference.device,
            "threads": self.options["threads"],
            "best_batch": inference.best_batch,
            "wire_port": port_of(self.wire),
            "chaos": bool(self.options.get("chaos")),
        }
        answer = await asyncio.to_thread(inference.probe)
        while True:
            call = self.worker.scheduler.kdlab_ready(
                address=self.worker.address,
                fingerprint=inference.deployment.fingerprint,
                t_t=inference.t_t,
                batch_s=inference.best_batch / inference.t_t,
                answer=answer,
                facts=facts,
            )
            refusal = await within(CALL_S, call)
            if not refusal:
                break
            if refusal.get("load"):
                return False
            if refusal["retry_s"] is None:
                raise TeacherRefused(refusal["refused"])
            self.say(f"waits {refusal['retry_s']:.0f} s: {refusal['refused']}")
            await asyncio.sleep(refusal["retry_s"])  # the coordinator's back-off itself
        self.say(
            f"ready: serves {inference.deployment.describe()} at {inference.t_t:.0f} "
            f"samples/s in batches of {inference.best_batch}, {inference.device}"
        )
        return True

    def _loop(self) -> None:
        """The inference thread: compute, and renew the lease between batches."""
        renewed = time.monotonic()
        while True:
            inference = self.inference
            assert inference is not None
            taken = inference.take(self.requests, self.renew_s / 2)
            if taken is None:
                return
            if taken:
                inference.answer(taken)
            now = time.monotonic()
            if (
                now - renewed >= self.renew_s
                and not self.draining
                and now > self.dark_until
            ):
                renewed = now
                asyncio.run_coroutine_threadsafe(self._renew(), self.loop)

    async def _renew(self) -> None:
        if self.rejoining:
            return
        inference = self.inference
        assert inference is not None
        try:
            call = self.worker.scheduler.kdlab_renew(
                address=self.worker.address,
                t_t=inference.t_t,
                answered=inference.answered,
                queued=self.open_requests,
            )
            known = await within(CALL_S, call)
            if not (known and self.ready) and not self.draining:
                # It hung and expired, or the pool serves something else now, or the
                # coordinator was started again.
                self.rejoining = True
                await self._deploy()
        except (OSError, TimeoutError, AttributeError) as error:  # no handler: a restart
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
    security.use(options.get("tls"))
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
            host=security.listen_address(options["host"]),
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


def _readable(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


if __name__ == "__main__":
    chosen = configured()
    give_way()  # a local pool's; `kdlab teacher` has a machine of its own
    reason = asyncio.run(serve(chosen["scheduler"], chosen))
    if reason:
        raise SystemExit(f"this teacher cannot serve: {reason}")
