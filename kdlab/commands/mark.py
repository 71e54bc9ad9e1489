"""`kdlab mark RUN`."""

import argparse

from kdlab.commands.command import found, tell

ABOUT = "give a run tags and a note, or leave it out of kdlab runs"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="id, a part of it, last; or sweeps/NAME")
    parser.add_argument("--tag", action="append", default=[], metavar="WORD")
    parser.add_argument("--untag", action="append", default=[], metavar="WORD")
    parser.add_argument("--note", help="in the place of the one before")
    for option, value in (("--archive", True), ("--unarchive", False)):
        parser.add_argument(option, action="store_const", const=value, dest="archived")


def do(arguments: argparse.Namespace) -> int:
    run = found(arguments.run)
    if arguments.tag or arguments.untag:
        run.tag(*arguments.tag, drop=arguments.untag)
    if arguments.note is not None:
        run.note(arguments.note)
    if arguments.archived is not None:
        run.archive(arguments.archived)
    tell(f"{run.name}: {run.marks}", as_json=False)
    return 0
