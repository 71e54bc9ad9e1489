"""`kdlab resume RUN`."""

import argparse

from kdlab.commands.command import json_flag, start_run
from kdlab.run.handle.run import resume

ABOUT = "resume a run from its newest checkpoint"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument(
        "--trust-components",
        action="store_true",
        help="run the source of components that came from a notebook cell",
    )
    parser.add_argument(
        "--anew",
        action="store_true",
        help="where all checkpoints of a training are damaged, set them aside and restart it",
    )
    parser.add_argument("--detach", action="store_true", help="start it and return")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    return start_run(
        lambda: resume(arguments.run, arguments.trust_components, arguments.anew), arguments
    )
