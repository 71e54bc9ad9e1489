"""`kdlab delete RUN...`."""

import argparse
import sys

from kdlab.commands.command import print_text, say
from kdlab.errors import BadInput
from kdlab.session import find_job

ABOUT = "delete runs that have ended, with their folders"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="id, a part of it, last; or sweeps/NAME")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def do(arguments: argparse.Namespace) -> int:
    if not arguments.yes and not sys.stdin.isatty():
        raise BadInput("Nothing was deleted: there is no terminal to ask in. Add --yes.")
    for name in dict.fromkeys(arguments.run):
        deleted = find_job(name).delete(lambda words: arguments.yes or _asked(words))
        print_text(deleted, as_json=False)
    return 0


def _asked(words: str) -> bool:
    say(f"{words}\nDelete it? There is no way back. [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")  # "" after Ctrl-D
