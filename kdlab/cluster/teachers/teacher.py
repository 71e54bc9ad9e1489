"""A teacher: a model behind a Dask worker and its label wire (label_wire.py).

The handler only queues; one inference thread computes (inference.py). The same thread
sends the lease renewals, between batches, so a teacher whose inference hangs no longer
looks alive.

Join order is EDL-Dist's (section 3.1): register at the coordinator, deploy the model,
measure t_t, report ready with a proof that it is the right model, serve.
"""

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from distributed import Worker, WorkerPlugin
from numpy.typing import NDArray

from kdlab.cluster import notebook_components
from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.coordination.coordinator_messages import Refusal, Welcome
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.teachers.inference import Inbox, Inference, Request, compute
from kdlab.cluster.teachers.weights import piece_for, remove_other_copies, weights_for
from kdlab.cluster.transport.frames import Arrays
from kdlab.cluster.transport.label_wire import Reply, listen, port_of
from kdlab.cluster.transport.messages import check, encode
from kdlab.cluster.transport.roles import FAILED, REFUSED, WITHDRAWN
from kdlab.cluster.transport.wire import CALL_S, call_coordinator
from kdlab.codec import from_builtins, to_dict
from kdlab.errors import TeacherRefused
from kdlab.models.memory import give_back_freed_memory
from kdlab.papers.edl_dist.teacher_info import TeacherInfo
from kdlab.supervision.backoff import Backoff

AGAIN_S, LONGEST_S = 0.2, 10.0  # between tries to reach the scheduler
_QUIET_S = 0.5  # without a request after leaving: then the readers know
_DRAIN_S = 10.0  # at most
_IDLE_S = 1.0  # without a request: then freed memory is returned


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a teacher ended; `code` tells a supervisor whether to restart it.

    0: it was withdrawn; 1: its inference failed: restart; 2: it was refused (another model,
    other data): a person must look; 3: the scheduler was away for too long: restart when that
    is back.
    """

    code: int = WITHDRAWN
    why: str = ""


class TeacherServer(WorkerPlugin):
    """A teacher, which outlives its connections to the scheduler (`setup` to `teardown`)."""

    name = "kdlab-teacher"

    def __init__(
        self, config: TeacherConfig, scratch: Path, say: Callable[[str], None]
    ) -> None:
        self.config, self.scratch, self.say = config, scratch, say
        self.requests = Inbox()
        self.draining = False
        self.ready = False
        self.worker: Worker | None = None  # None without a connection
        self.wire: asyncio.Server | None = None
        self.serving: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.thread: threading.Thread | None = None
        self.inference: Inference | None = None
        self.open_requests = 0
        self.last_activity = 0.0
        self.ending: Ending | None = None
        self.renewed = 0.0
        self.renew_s = 1.5  # a quarter of the TTL, from the coordinator
        self.dark_until = 0.0  # chaos: until then its network seems cut
        self.delayed_until, self.delay_s = 0.0, 0.0  # chaos: delay of answers
        self.lies = 0.0  # chaos: share of answers that are wrong
        self.chance = random.Random(0)

    async def setup(self, worker: Worker) -> None:
        self.worker, self.loop = worker, asyncio.get_running_loop()
        if self.wire is None:
            # At the address that readers get: a name may stand for several.
            host = urlsplit(worker.address).hostname or self.config.host
            port = self.config.label_port
            self.wire = await listen(host, self.infer, self._largest_request, port)
        if self.config.chaos:
            worker.handlers |= {
                "kdlab_partition": self.partition,
                "kdlab_delay": self.delay,
                "kdlab_lie": self.lie,
            }
        # Loading takes seconds; the worker must answer its scheduler meanwhile.
        self.serving = asyncio.create_task(self._serve())

    def teardown(self, worker: Worker) -> None:
        self.worker, self.ready = None, False
        if self.serving is not None:
            self.serving.cancel()

    def close(self) -> None:
        self.requests.put(None)  # else the inference thread would keep the process alive
        if self.wire is not None:
            self.wire.close()

    def infer(self, asked: dict[str, object], inputs: Arrays, reply: Reply) -> None:
        """Handle a request for logits by value (views) or by reference (ids, epoch)."""
        inference = self.inference
        try:
            if inference is None:
                raise TeacherRefused("it has not loaded its model yet")
            if "weights" in asked:
                reply(piece_for(asked, self._files()))
                return
            deployment, data = inference.deployment, inference.data
            if asked.get("serves", deployment.teacher) != deployment.teacher:
                raise TeacherRefused(
                    f"it now serves teacher {deployment.teacher}, and is asked for "
                    f"{str(asked['serves'])[:80]}"
                )
            wanted = check(
                asked,
                inputs,
                deployment.shape,
                deployment.num_classes,
                # A hedge or a check may be cut for a teacher that takes larger requests.
                deployment.batch,
                None if data is None else data.ids_below,
            )
        except (TeacherRefused, ValueError) as error:
            reply(error)
            return

        def answered(logits: NDArray[np.float32] | Exception) -> None:
            """Encode the answer, in the inference thread."""
            answer: Arrays | Exception
            if isinstance(logits, Exception):
                answer = logits
            else:
                if self.lies and self.chance.random() < self.lies:
                    logits = np.roll(logits, 1, axis=1)
                try:
                    answer = encode(logits, wanted.replies, wanted.top_k)
                    answer = request.took.with_times(answer, request.engine)
                except Exception as error:  # a model may answer anything
                    answer = error
            self.loop.call_soon_threadsafe(answer_it, answer)

        def answer_it(answer: Arrays | Exception, late: bool = False) -> None:
            now = time.monotonic()
            left = self.dark_until - now
            if left > 0:
                self.loop.call_later(left, answer_it, answer)
                return
            if now < self.delayed_until and not late:
                self.loop.call_later(self.delay_s, answer_it, answer, True)
                return
            self.open_requests -= 1
            self.last_activity = time.monotonic()
            reply(answer)

        self.open_requests += 1
        ids, views = inputs.get("ids"), inputs.get("views")
        request = Request(wanted.epoch, ids, views, answered, inference, fresh=wanted.fresh)
        self.requests.put(inference.expect(request))

    def _largest_request(self) -> int:
        """Most bytes of a request: the images of the largest batch as float32."""
        if self.inference is None:
            return 0
        deployment = self.inference.deployment
        return 4 * deployment.batch * prod(deployment.shape) + 4096

    async def partition(self, seconds: float) -> None:
        """Chaos: send neither answers nor renewals for these seconds."""
        self.dark_until = time.monotonic() + seconds

    async def delay(self, seconds: float, delay_s: float) -> None:
        """Chaos: send each answer `delay_s` later, for these seconds."""
        self.delayed_until, self.delay_s = time.monotonic() + seconds, delay_s

    async def lie(self, share: float) -> None:
        """Chaos: make this share of answers wrong from now on."""
        self.lies = share

    def _files(self) -> dict[str, Path]:
        """Paths of the loaded weights, by sha256."""
        if self.inference is None:
            return {}
        members = self.inference.deployment.members
        return {
            m.sha256: path for m, path in zip(members, self.inference.weights, strict=True)
        }

    async def _serve(self) -> None:
        """Come up at the coordinator, with retries, and start the inference thread."""
        again = Backoff(AGAIN_S, longest_s=LONGEST_S)
        while not self.ready and self.ending is None:
            try:
                await self._deploy()
            except (OSError, TimeoutError) as error:  # a busy or restarted scheduler
                logging.getLogger("kdlab").warning("not ready yet: %s", error)
                await asyncio.sleep(again.wait_s() * random.uniform(0.5, 1.0))
            except (TeacherRefused, ValueError) as error:
                self.end(Ending(REFUSED, f"{type(error).__name__}: {error}"))
            except Exception as error:  # any failure to come up ends this teacher
                self.end(Ending(FAILED, f"{type(error).__name__}: {error}"))
        if self.thread is None and self.ready:
            self.thread = threading.Thread(
                target=self._compute, name="inference", daemon=True
            )
            self.thread.start()

    def end(self, ending: Ending) -> None:
        if self.ending is None:
            self.ending = ending
        if self.worker is not None:  # a separate task: this one may end with it
            self.closing = asyncio.create_task(self.worker.close())

    def _compute(self) -> None:
        self.renewed = time.monotonic()
        try:
            compute(self.requests, self._renew_in_time, lambda: self.renew_s / 2)
        except Exception as error:  # else it would keep its connection and never answer
            why = f"its inference ended: {type(error).__name__}: {error}"
            self.loop.call_soon_threadsafe(self.end, Ending(FAILED, why))

    async def _ask(
        self, operation: str, deadline_s: float = CALL_S, **arguments: object
    ) -> object:
        """Call an operation of the coordinator for this teacher.

        Raises:
            OSError, TimeoutError: no answer, or there is no coordinator yet.
        """
        worker = self.worker
        if worker is None:
            raise ConnectionError("the scheduler is gone")
        return await call_coordinator(
            worker.scheduler, operation, deadline_s, address=worker.address, **arguments
        )

    async def _deploy(self) -> None:
        """Register, load the pool's deployment (unless it is loaded), report ready."""
        self.ready = False  # until then a renewal tries again
        while not self.ready:
            deployment = await self._join()
            loaded = self.inference
            if loaded is None or loaded.deployment.fingerprint != deployment.fingerprint:
                weights = await weights_for(deployment, self.scratch, self._ask)
                loaded = await asyncio.to_thread(self._prepare, deployment, weights)
                remove_other_copies(deployment, self.scratch)
            self.inference = loaded
            self.ready = await self._report_ready(loaded)

    async def _join(self) -> Deployment:
        loaded = self.inference.deployment.to_json() if self.inference else None
        reply = None
        while reply is None:
            reply = await self._ask("hello", serves=loaded)
        welcome = from_builtins(Welcome, reply)
        self.renew_s = welcome.renew_s
        return Deployment.from_json(welcome.deployment or {})

    def _prepare(self, deployment: Deployment, weights: list[Path]) -> Inference:
        notebook_components.define_components(deployment.components)
        wanted = self.config.sha256
        served = "+".join(member.sha256 for member in deployment.members)
        if wanted is not None and wanted != served:
            raise TeacherRefused(
                f"this teacher was started for model {wanted[:16]}, the pool serves "
                f"{deployment.fingerprint}"
            )
        inference = Inference(
            deployment, weights, self.config.threads, self.config.device, self.config.number
        )
        inference.load_data()
        inference.choose_engine(self.say)
        inference.measure()
        return inference

    async def _report_ready(self, inference: Inference) -> bool:
        """Report ready; False where the pool now serves something else to load."""
        assert self.wire is not None
        facts = TeacherInfo(
            name=self.config.name,
            pid=os.getpid(),
            device=inference.device,
            threads=self.config.threads,
            # Batches of several students are gathered here, unseen by readers.
            best_batch=min(inference.best_batch, inference.deployment.batch),
            min_batch=inference.min_batch,
            by_reference=inference.data is not None,
            here=inference.local_share(),
            weights=tuple(self._files()),
            wire_port=port_of(self.wire),
            engine=inference.engine,
            chaos=self.config.chaos,
        )
        answer = await asyncio.to_thread(inference.probe)
        while True:
            answered = await self._ask(
                "ready",
                fingerprint=inference.deployment.fingerprint,
                t_t=inference.t_t,
                batch_s=inference.best_batch / inference.t_t,
                answer=answer,
                facts=to_dict(facts),
            )
            if not answered:
                break
            refusal = from_builtins(Refusal, answered)
            if refusal.load:
                return False
            if refusal.retry_s is None:
                raise TeacherRefused(refusal.refused)
            self.say(f"waits {refusal.retry_s:.0f} s: {refusal.refused}")
            await asyncio.sleep(refusal.retry_s)  # the coordinator chose this back-off
        self.say(
            f"ready: serves {inference.deployment.describe()} at {inference.t_t:.0f} "
            f"samples/s in batches of {inference.best_batch}, {inference.device}"
        )
        return True

    def _renew_in_time(self) -> None:
        """Renew the lease when it is due; called from the inference thread."""
        now = time.monotonic()
        due = now - self.renewed >= self.renew_s and now > self.dark_until
        if due and not self.draining:
            self.renewed = now
            asyncio.run_coroutine_threadsafe(self._renew(), self.loop)

    async def _renew(self) -> None:
        inference = self.inference
        if not self.ready or self.worker is None:
            return  # it is coming up, or there is no connection
        assert inference is not None
        if not self.open_requests and time.monotonic() - self.last_activity > _IDLE_S:
            give_back_freed_memory()  # also of coming up
        news = {
            "answered": inference.answered,
            "queued": self.open_requests,
            "here": inference.local_share(),
            "engine": inference.engine,
            "shared": 0 if inference.cache is None else inference.cache.hits,
        }
        try:
            known = await self._ask("renew", t_t=inference.t_t, news=news)
        except (OSError, TimeoutError) as error:
            logging.getLogger("kdlab").warning("lease not renewed: %s", error)
            return
        if not known and not self.draining and self.ready:
            # Its lease expired while it hung, the pool serves something else now, or the
            # coordinator was restarted.
            self.ready = False
            self.serving = asyncio.create_task(self._serve())

    async def withdraw(self) -> None:
        """Leave the pool, then answer every request that still arrives.

        The coordinator notifies the readers at once; a request that was on its way then is
        still answered, so nothing has to be sent again.
        """
        if self.draining:
            return
        self.draining = True
        with contextlib.suppress(OSError, TimeoutError):
            await self._ask("leave", deadline_s=2.0)
        self.last_activity = time.monotonic()
        deadline = self.last_activity + _DRAIN_S
        while time.monotonic() < deadline and (
            self.open_requests or time.monotonic() - self.last_activity < _QUIET_S
        ):
            await asyncio.sleep(_QUIET_S / 10)  # between checks of the two conditions
        answered = self.inference.answered if self.inference else 0
        self.say(f"withdrawn after {answered} batches")
        self.end(Ending())
