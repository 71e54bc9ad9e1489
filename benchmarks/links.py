"""`kdlab bench links`: by reference or by value, over 100 Mbit/s or 1 Gbit/s, and 20 ms away.

A student and its reader on one side, emulated teachers on the other, each in a network
namespace of its own; the kernel limits what goes between them. EDL-Dist names the traffic of
inputs as its overhead (sections 4.4 and 5) and references as the way out of it.
"""

from benchmarks.harness import Scratch, quiet, report
from benchmarks.link_student import LinkStudentConfig, OverLink
from benchmarks.network import FAR, NEAR, MachineLink, delayed_by, linked, require
from kdlab.cluster.child_configs import EmulatedTeachersConfig
from kdlab.cluster.wires.messages import Inputs
from kdlab.codec import typed
from kdlab.report.figures import Figure, Report, Say, at, figure

WAYS: tuple[Inputs, ...] = ("reference", "value_uint8")
LINKS = (MachineLink(), MachineLink(1000.0), MachineLink(100.0))
DELAYED = (MachineLink(1000.0, 20.0), MachineLink(100.0, 20.0))
_PATIENCE_S = 300.0


def measure(repeats: int = 3, say: Say = quiet) -> Report:
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
        found = _over(link, repeats)
        for way in WAYS:
            own = found[way]
            label = f"{way}/{link.name}"
            figures += at(
                label,
                figure("of_n_training", own.ratios, "ratio"),
                figure("bytes_per_sample", own.bytes, "bytes"),
                figure("mbit_per_s", own.mbit_per_s, "Mbit/s"),
            )
            say(f"{label}: {own.ratios[0]:.3f} of N-training")
    return report("links", figures)


def _over(link: MachineLink, repeats: int) -> dict[Inputs, OverLink]:
    with linked(link) as (near, far), Scratch() as scratch:
        folder = scratch.folder
        config = LinkStudentConfig(host=NEAR, ways=WAYS, repeats=repeats, folder=folder)
        student = scratch.child("benchmarks.link_student", config, "student", within=near)
        wanted = student.answer(_PATIENCE_S)
        own = EmulatedTeachersConfig(
            host=FAR, tls=None, scratch=str(folder / "scratch"), **wanted
        )
        scratch.child("kdlab.testing.emulated_teachers", own, "teachers", within=far)
        return typed(dict[Inputs, OverLink], student.answer(_PATIENCE_S))
