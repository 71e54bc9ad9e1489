"""One request for soft labels over the real wire, by way and size of image.

The teacher is emulated and answers at once, so the time is that of encoding, sending,
receiving and decoding, and of gathering the pixels where they travel. Bytes are what the
process's sockets carried, measured at the loopback device of this machine.
"""

import asyncio
import time
from statistics import median

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.harness import quiet, report
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, samples_of
from kdlab.cluster.child_configs import WiresConfig
from kdlab.cluster.coordination.coordinator_messages import TeacherStatus
from kdlab.cluster.reader.reader_wires import Wires
from kdlab.cluster.wires import security
from kdlab.cluster.wires.messages import Inputs
from kdlab.cluster.wires.security import Files
from kdlab.cluster.wires.wire import settle
from kdlab.data.samples import PlannedSamples
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.report.figures import Figure, Report, Say, at, figure

WAYS: tuple[Inputs, ...] = ("reference", "value_uint8", "value_float32")
SIZES = {32: 64, 224: 32}  # pixels of a side: samples of a batch
_REQUESTS = 40  # per way and repeat, one after the other
Times = dict[str, tuple[list[float], list[float]]]  # ms, bytes of a sample: of each repeat


def measure(repeats: int = 5, say: Say = quiet) -> Report:
    settle()
    figures: list[Figure] = []
    for size, batch in SIZES.items():
        samples = samples_of(ImageCase(size, batch, 1, batches=8))
        with Scene(samples) as scene:
            pool = scene.emulated(teachers=1, t_t=1e7, jitter=0.0)
            (teacher,) = pool.wait().teachers
            with security.used(pool.tls):
                found = asyncio.run(_measure(samples, teacher, repeats, pool.tls))
        for way in WAYS:
            times, carried = found[way]
            label = f"{way}/{size}"
            figures += at(
                label,
                figure("ms_per_request", times, "ms"),
                figure("bytes_per_sample", carried, "bytes"),
            )
            say(f"{label}: {median(times):.2f} ms, {median(carried):.0f} bytes per sample")
    return report("transport", figures)


async def _measure(
    samples: PlannedSamples, of: TeacherStatus, repeats: int, tls: Files | None
) -> Times:
    """Ways take turns within each repeat, so that a drift of the machine meets all."""
    found: Times = {way: ([], []) for way in WAYS}
    wires = {way: await Wires.open(_config(samples, way, tls)) for way in WAYS}
    ids, teacher = samples.batches(0)[0], of.address
    assert of.facts is not None
    for way in WAYS:
        wires[way].follow({teacher: of.facts.wire_port}, (), full=True)
        await _request(wires[way], teacher, samples, ids, way)  # connections are made
    for _ in range(repeats):
        for way in WAYS:
            times, carried = found[way]
            before, begin = _loopback_bytes(), time.perf_counter()
            for _ in range(_REQUESTS):
                await _request(wires[way], teacher, samples, ids, way)
            times.append(1000 * (time.perf_counter() - begin) / _REQUESTS)
            carried.append((_loopback_bytes() - before) / _REQUESTS / len(ids))
    for open_wires in wires.values():
        await open_wires.close()
    return found


async def _request(
    wires: Wires, teacher: str, samples: PlannedSamples, ids: NDArray[np.int64], way: Inputs
) -> None:
    views = None if way == "reference" else samples.views(ids, 0)
    answer = await wires.soft_labels(teacher, 0, ids, views)
    assert answer.dtype == np.float32


def _config(samples: PlannedSamples, way: Inputs, tls: Files | None) -> WiresConfig:
    return WiresConfig(
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
