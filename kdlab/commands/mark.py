"""`kdlab mark RUN`."""

import argparse

from kdlab.commands.command import print_text
from kdlab.session import find_job

ABOUT = "give a run tags and a note, or hide it from kdlab runs"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="id, a part of it, last; or sweeps/NAME")
    parser.add_argument("--tag", action="append", default=[], metavar="WORD")
    parser.add_argument("--untag", action="append", default=[], metavar="WORD")
    parser.add_argument("--note", help="replaces the previous note")
    for option, value in (("--archive", True), ("--unarchive", False)):
        parser.add_argument(option, action="store_const", const=value, dest="archived")


def do(arguments: argparse.Namespace) -> int:
    run = find_job(arguments.run)
    if arguments.tag or arguments.untag:
        run.tag(*arguments.tag, drop=arguments.untag)
    if arguments.note is not None:
        run.note(arguments.note)
    if arguments.archived is not None:
        run.archive(arguments.archived)
    print_text(f"{run.name}: {run.marks}", as_json=False)
    return 0
