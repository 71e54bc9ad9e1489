"""One request for soft labels over the real wire, by way and size of image.

The teacher is emulated and answers at once, so the time is that of encoding, sending,
receiving and decoding, and of gathering the pixels where they travel. Bytes are what the
process's sockets carried, measured at the loopback device of this machine.
"""

import asyncio
from functools import partial

import numpy as np
import psutil

from benchmarks.harness import in_turns, quiet, report, timed
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, samples_of
from kdlab.cluster.child_configs import PoolConnectionConfig
from kdlab.cluster.reader.pool_connection import PoolConnection
from kdlab.cluster.transport import security
from kdlab.cluster.transport.messages import Inputs
from kdlab.cluster.transport.security import Files
from kdlab.cluster.transport.wire import configure_dask
from kdlab.data.samples import PlannedSamples
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.report.figures import EmitLine, Figure, Report, at, figure

WAYS: tuple[Inputs, ...] = ("reference", "value_uint8", "value_float32")
SIZES = {32: 64, 224: 32}  # pixels of a side: samples of a batch
_REQUESTS = 40  # per way and repeat, one after the other


def measure(repeats: int = 5, say: EmitLine = quiet) -> Report:
    configure_dask()
    each = [_of_size(size, batch, repeats, say) for size, batch in SIZES.items()]
    return report("transport", [one for figures in each for one in figures])


def _of_size(size: int, batch: int, repeats: int, say: EmitLine) -> list[Figure]:
    samples = samples_of(ImageCase(size, batch, 1, batches=8))
    ids, carried = samples.batches(0)[0], {way: list[float]() for way in WAYS}
    with Scene(samples) as scene, asyncio.Runner() as runner:
        pool = scene.emulated(teachers=1, t_t=1e7, jitter=0.0)
        (teacher,) = pool.wait().teachers
        assert teacher.facts is not None
        where = {teacher.address: teacher.facts.wire_port}

        async def ask(wires: PoolConnection, way: Inputs) -> None:
            for _ in range(_REQUESTS):
                views = None if way == "reference" else samples.views(ids, 0)
                answer = await wires.soft_labels(teacher.address, 0, ids, views)
                assert answer.dtype == np.float32

        def ms(wires: PoolConnection, way: Inputs) -> float:
            before = _loopback_bytes()
            took = timed(lambda: runner.run(ask(wires, way)))
            carried[way].append((_loopback_bytes() - before) / _REQUESTS / batch)
            return 1000 * took / _REQUESTS

        with security.tls_settings(pool.tls):
            works = {}
            for way in WAYS:
                wires = runner.run(PoolConnection.open(_config(samples, way, pool.tls)))
                wires.follow(where, (), full=True)
                works[way] = partial(ms, wires, way)
            say(f"{size} pixels")
            times = in_turns(works, repeats, say, "ms per request", warm_up=1)
            for work in works.values():
                runner.run(work.args[0].close())
    return [
        one
        for way in WAYS
        for one in at(
            f"{way}/{size}",
            figure("ms_per_request", times[way], "ms"),
            figure("bytes_per_sample", carried[way][1:], "bytes"),
        )
    ]


def _config(
    samples: PlannedSamples, way: Inputs, tls: Files | None
) -> PoolConnectionConfig:
    return PoolConnectionConfig(
        classes=samples.classes,
        replies="full",
        top_k=1,
        inputs=way,
        rules=Rules(t_s=1.0, lt=1, ut=2, deadline_s=60.0),
        coordinator="",
        student="bench",
        tls=tls,
    )


def _loopback_bytes() -> int:
    """Sent over loopback by anybody; kdlab's other processes are idle meanwhile."""
    counters = psutil.net_io_counters(pernic=True)
    return int(counters["lo"].bytes_sent) if "lo" in counters else 0
