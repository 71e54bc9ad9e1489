"""`kdlab delete RUN...`."""

import argparse
import sys

from kdlab.commands.command import found, say, tell
from kdlab.errors import BadInput
from kdlab.run.handle.marks import content

ABOUT = "remove runs that have ended, with all that is in their folders"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="id, a part of it, last; or sweeps/NAME")
    parser.add_argument("--yes", action="store_true", help="without being asked")


def do(arguments: argparse.Namespace) -> int:
    runs = {run.path: run for run in map(found, arguments.run)}.values()
    for run in runs:
        say(content(run.folder))
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise BadInput("Nothing was deleted: there is nobody to ask. Add --yes.")
        say("Delete? There is no way back. [y/N]")
        if input().strip().lower() not in ("y", "yes"):
            raise BadInput("Nothing was deleted.")
    for run in runs:
        tell(run.delete(), as_json=False)
    return 0
