"""The process that holds all emulated teachers of a pool, each a Dask worker of its own.

They join, renew their leases and answer as real ones do, one by one and over the same
wires; only the model is missing.
"""

import asyncio
import os
import random
import time
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

import dask
import numpy as np
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

from kdlab.cluster.children import announce, configured
from kdlab.cluster.label_wire import Arrays, Reply, listen, port_of
from kdlab.cluster.messages import encode, samples_in
from kdlab.cluster.wire import CALL_S, settle, within

RENEWALS: deque[float] = deque(maxlen=100_000)  # s, from question to answer
_LARGEST_REQUEST = 2**30  # bytes
_AT_ONCE = 32  # workers that connect at the same time


class EmulatedTeacher(WorkerPlugin):
    name = "kdlab-teacher"

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        self.number, self.config = number, config
        self.chance = random.Random(config["seed"] * 100_003 + number)
        self.free_at = 0.0  # loop time at which the requests before are done
        self.answered = 0

    async def setup(self, worker: Worker) -> None:
        self.worker = worker
        self.wire = await listen(self.config["host"], self.infer, lambda: _LARGEST_REQUEST)
        await self._join()
        self.renewing = asyncio.create_task(self._renew())

    async def teardown(self, worker: Worker) -> None:
        self.renewing.cancel()
        self.wire.close()

    async def _join(self) -> None:
        scheduler, address = self.worker.scheduler, self.worker.address
        reply = await within(CALL_S, scheduler.kdlab_hello(address=address))
        deployment = reply["deployment"]
        self.classes = int(deployment["num_classes"])
        self.renew_s = float(reply["renew_s"])
        rate = self.config["t_t"]
        refusal = await within(
            CALL_S,
            scheduler.kdlab_ready(
                address=address,
                fingerprint=deployment["fingerprint"],
                t_t=rate,
                batch_s=deployment["batch"] / rate,
                answer=[],
                facts={
                    "name": f"emulated-{self.number}",
                    "pid": os.getpid(),
                    "device": "emulated",
                    "threads": 0,
                    "best_batch": deployment["batch"],
                    "wire_port": port_of(self.wire),
                },
            ),
        )
        if refusal:
            raise RuntimeError(
                f"emulated teacher {self.number} was refused: {refusal['refused']}"
            )

    async def _renew(self) -> None:
        # Spread over the interval, as teachers are that started one by one.
        await asyncio.sleep(self.renew_s * self.chance.random())
        due = time.monotonic()
        while True:
            begin = time.monotonic()
            call = self.worker.scheduler.kdlab_renew(
                address=self.worker.address, t_t=self.config["t_t"], answered=self.answered
            )
            known = await within(CALL_S, call)
            RENEWALS.append(time.monotonic() - begin)
            if not known:
                await self._join()
            due = max(due + self.renew_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())  # one message every renew_s

    def infer(self, asked: dict[str, Any], inputs: Arrays, reply: Reply) -> None:
        """Zeros, after the service time of the requests before and of this one."""
        count = samples_in(inputs)
        spread = 1 + self.config["jitter"] * (2 * self.chance.random() - 1)
        loop = asyncio.get_running_loop()
        self.free_at = max(loop.time(), self.free_at) + spread * count / self.config["t_t"]
        loop.call_at(self.free_at, self._answer, count, asked, reply)

    def _answer(self, count: int, asked: dict[str, Any], reply: Reply) -> None:
        self.answered += 1
        logits = np.zeros((count, self.classes), np.float32)
        reply(encode(logits, asked["replies"], asked["top_k"]))


def tell(order: dict[str, Any]) -> None:
    """How long renewals took since the last question, for benchmarks."""
    taken = [RENEWALS.popleft() for _ in range(len(RENEWALS))]
    announce(renewals=sorted(taken))


async def main() -> None:
    config = configured(tell)
    settle()
    # Each worker would watch this one process: 614 of them took 60 % of its time.
    dask.config.set({"distributed.admin.system-monitor.interval": "1h"})
    async with AsyncExitStack() as stack:
        workers = [
            Worker(
                config["scheduler"],
                nthreads=1,
                name=f"emulated-{number}",
                host=config["host"],
                dashboard=False,
                local_directory=config["scratch"],
                memory_limit=0,
                plugins=(EmulatedTeacher(number, config),),
            )
            for number in range(config["teachers"])
        ]
        for start in range(0, len(workers), _AT_ONCE):
            group = workers[start : start + _AT_ONCE]
            await asyncio.gather(*(stack.enter_async_context(w) for w in group))
        await asyncio.gather(*(worker.finished() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main())
