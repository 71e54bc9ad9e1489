"""`kdlab bench links`: by reference or by value, over 100 Mbit/s or 1 Gbit/s, and 20 ms away.

A student and its reader on one side, emulated teachers on the other, each in a network
namespace of its own; the kernel limits what goes between them. EDL-Dist names the traffic of
inputs as its overhead (sections 4.4 and 5) and references as the way out of it.
"""

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import torch

from benchmarks.harness import Scratch, quiet, report, until
from benchmarks.network import FAR, NEAR, MachineLink, delayed_by, linked, require
from benchmarks.scene import Scene
from benchmarks.slices import BUFFER, seconds_of, share_of
from benchmarks.students import ImageCase, calibrated, deployment_for, samples_of
from kdlab.cluster.child_configs import EmulatedTeachersConfig
from kdlab.cluster.schedulers import start_scheduler, status_of
from kdlab.cluster.served import Served
from kdlab.cluster.transport.messages import Inputs
from kdlab.codec import from_builtins
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import EmitLine, Figure, Report, at, figure
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.children import announce

WAYS: tuple[Inputs, ...] = ("reference", "value_uint8")
LINKS = (MachineLink(), MachineLink(1000.0), MachineLink(100.0))
DELAYED = (MachineLink(1000.0, 20.0), MachineLink(100.0, 20.0))
_PATIENCE_S = 300.0
# 200 samples/s of 150 kB: 240 Mbit/s by value.
_CASE = ImageCase(size=224, batch=16, step_ms=80, batches=16)
_TEACHERS = 4
_WARM_UP, _ALONE, _SERVED = 4, 15, 40  # steps
_UT = BUFFER * _CASE.batch


@dataclass(frozen=True, slots=True)
class OverLink:
    """Measurements of one way of inputs over a link: a value for each repeat."""

    ratios: list[float] = field(default_factory=list)  # of the rate with true labels alone
    bytes: list[float] = field(default_factory=list)  # of a sample
    mbit_per_s: list[float] = field(default_factory=list)  # both ways


def measure(repeats: int = 3, say: EmitLine = quiet) -> Report:
    """`of_n_training/WAY/LINK` and `bytes_per_sample/WAY/LINK`.

    Raises:
        BadInput: not root, or no iproute2.
    """
    figures: list[Figure] = []
    require()
    how = delayed_by()
    if how is None:
        say("neither netem nor /dev/net/tun is here: links are limited, and not delayed")
    else:
        say(f"20 ms of the delayed links: {how}")
    for link in LINKS + DELAYED if how else LINKS:
        by_way = _over(link, repeats)
        for way in WAYS:
            measured = by_way[way]
            label = f"{way}/{link.name}"
            figures += at(
                label,
                figure("of_n_training", measured.ratios, "ratio"),
                figure("bytes_per_sample", measured.bytes, "bytes"),
                figure("mbit_per_s", measured.mbit_per_s, "Mbit/s"),
            )
            say(f"{label}: {measured.ratios[0]:.3f} of N-training")
    return report("links", figures)


def _over(link: MachineLink, repeats: int) -> dict[Inputs, OverLink]:
    with linked(link) as (near, far), Scratch() as scratch:
        args = {"host": NEAR, "ways": WAYS, "repeats": repeats, "folder": scratch.folder}
        student = scratch.calling(near_side, args, within=near)
        config = EmulatedTeachersConfig(
            host=FAR,
            tls=None,
            scratch=str(scratch.folder / "scratch"),
            **student.answer(_PATIENCE_S),
        )
        scratch.child("kdlab.testing.emulated_teachers", config, "teachers", within=far)
        answer = student.answer(_PATIENCE_S)["done"]
        return from_builtins(dict[Inputs, OverLink], answer)


def near_side(
    host: str, ways: tuple[Inputs, ...], repeats: int, folder: Path
) -> dict[Inputs, OverLink]:
    """Measure a student in a network namespace of its own; its scheduler listens at `host`."""
    torch.set_num_threads(1)
    samples = samples_of(_CASE)
    spec, rate = calibrated(_CASE, samples)
    with Scene(samples, folder) as scene:
        # Emulated teachers load nothing, so they take references too.
        scheduler, address = start_scheduler(
            deployment_for(samples), folder / "pool", ttl_s=6.0, host=host
        )
        scene.callback(scheduler.stop)
        announce(scheduler=address, teachers=_TEACHERS, t_t=rate)
        until(lambda: len(status_of(address, None).ready) >= _TEACHERS)
        scene.pool = PoolAddress(address=address, teacher="emulated", tls=None)
        n_training = scene.training("alone", spec, NoTeacher())
        n_training.advance(_WARM_UP)
        by_way = {way: OverLink() for way in ways}
        for way, measured in by_way.items():
            source = Served(lt=_UT / 2, ut=_UT, inputs=way)
            for repeat in range(repeats):
                name = f"{way}{repeat}"
                served = partial(_served, scene, name, spec, source, rate, measured)
                measured.ratios.append(share_of(n_training, _ALONE, served))
        return by_way


def _served(
    scene: Scene, name: str, spec: PatchNet, source: Served, rate: float, measured: OverLink
) -> float:
    """Return the seconds of a step; add what the link carried meanwhile to `measured`."""
    served = scene.training(name, spec, source, rate)
    with closing(served.source):
        served.advance(_WARM_UP)
        before = _carried()
        took = seconds_of(served, _SERVED)
        carried = _carried() - before
    measured.bytes.append(carried / (_SERVED * _CASE.batch))
    measured.mbit_per_s.append(8e-6 * carried / (took * _SERVED))
    return took


def _carried() -> int:
    """Count all bytes both ways over the link."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(c.bytes_sent + c.bytes_recv for n, c in counters.items() if n != "lo")
