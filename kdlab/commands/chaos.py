"""`kdlab chaos RUN kill_teacher=1 every_s=5 events=3`."""

import argparse

from kdlab.config.load import merged
from kdlab.run import attach

ABOUT = "inject faults into a running run: kills, full disks, damaged files"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="KEY=NUMBER",
        help="weights of kinds, such as kill_teacher=2 fill_disk=1, and every_s, events, "
        "lasts_s, seed, back_after_s; an unknown key prints all keys",
    )


def do(arguments: argparse.Namespace) -> int:
    """Run chaos until its last event or Ctrl-C, then lift what it stopped or limited."""
    from kdlab.run.handle.chaos import chaos

    trouble = chaos(
        attach(arguments.run),
        lambda event: print(event.text(), flush=True),
        **merged(arguments.settings),
    )
    try:
        trouble.wait()
    finally:
        trouble.stop()
    print(f"{trouble.done} of {trouble.spec.events} events hit somebody.")
    return 0
