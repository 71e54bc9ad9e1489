"""The student's side of `kdlab bench links`, in a network namespace of its own."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from kdlab.bench.slices import BUFFER, TimedTraining, seconds_of
from kdlab.bench.students import (
    ImageCase,
    calibrated,
    context,
    deployment_for,
    loop_of,
    samples_of,
)
from kdlab.cluster.pool import start_scheduler, wait_for_teacher
from kdlab.cluster.served import Served
from kdlab.cluster.wires.messages import Inputs
from kdlab.messages import plain
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.children import announce, configured

# 200 samples/s of 150 kB: 240 Mbit/s by value.
_CASE = ImageCase(size=224, batch=16, step_ms=80, batches=16)
_TEACHERS = 4
_WARM_UP, _ALONE, _SERVED = 4, 15, 40  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStudentConfig:
    """The near end of the link: where it listens, what it measures, how often."""

    host: str
    ways: tuple[Inputs, ...]
    repeats: int
    folder: Path


@dataclass(frozen=True, slots=True)
class OverLink:
    """What one way of inputs has over a link: a value for each repeat.

    Attributes:
        ratios: of the rate of training with true labels alone.
        bytes: of a sample.
        mbit_per_s: both ways.
    """

    ratios: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    mbit_per_s: list[float] = field(default_factory=list)


def main() -> None:
    config = configured(LinkStudentConfig)
    torch.set_num_threads(1)
    folder = config.folder
    samples = samples_of(_CASE)
    spec, rate = calibrated(_CASE, samples)
    # Emulated teachers load nothing, so they take references too.
    scheduler, address = start_scheduler(
        deployment_for(samples), folder / "pool", ttl_s=6.0, host=config.host
    )
    try:
        announce(scheduler=address, teachers=_TEACHERS, t_t=rate)
        wait_for_teacher(address, 60.0, lambda: None, lambda: False, at_least=_TEACHERS)
        pool = PoolAddress(address=address, teacher="emulated", tls=None)
        place = context(samples, folder / "alone", pool, rate, "alone")
        alone = TimedTraining(
            "alone", loop_of(spec, samples, place.folder), NoTeacher().build(place)
        )
        alone.advance(_WARM_UP)
        found: dict[Inputs, OverLink] = {}
        for way in config.ways:
            own = found[way] = OverLink()
            for repeat in range(config.repeats):
                label = f"{way}{repeat}"
                here = context(samples, folder / label, pool, rate, label)
                before = seconds_of(alone, _ALONE)
                source = Served(
                    lt=BUFFER * _CASE.batch / 2, ut=BUFFER * _CASE.batch, inputs=way
                ).build(here)
                try:
                    served = TimedTraining(
                        label, loop_of(spec, samples, here.folder), source
                    )
                    served.advance(_WARM_UP)
                    carried, begin = _carried(), time.perf_counter()
                    took = seconds_of(served, _SERVED)
                    carried = _carried() - carried
                    wall = time.perf_counter() - begin
                finally:
                    source.close()
                after = seconds_of(alone, _ALONE)
                own.ratios.append(0.5 * (before + after) / took)
                own.bytes.append(carried / (_SERVED * _CASE.batch))
                own.mbit_per_s.append(8e-6 * carried / wall)
        announce(**plain(found))
    finally:
        scheduler.stop()


def _carried() -> int:
    """Bytes both ways over the link, whatever is in them."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(c.bytes_sent + c.bytes_recv for n, c in counters.items() if n != "lo")


if __name__ == "__main__":
    main()
