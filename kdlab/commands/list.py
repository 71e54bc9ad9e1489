"""`kdlab list [KIND] [--search WORD]`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.run.catalogue import catalogue, listed

ABOUT = "what there is: configs, cards and components"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", nargs="?", help="configs, losses, models, teachers ..., or all"
    )
    parser.add_argument(
        "--search", metavar="WORD", help="only what has it in its name or its line"
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    kind, word = arguments.kind, arguments.search
    found = {"kinds": listed(kind, word)} if arguments.json else None
    show(catalogue(kind, word), found, as_json=arguments.json)
    return 0
