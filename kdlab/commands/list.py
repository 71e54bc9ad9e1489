"""`kdlab list [KIND] [--search WORD]`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.run.catalogue import catalogue, listed

ABOUT = "list configs, cards and components"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", nargs="?", help="configs, losses, models, teachers ..., or all"
    )
    parser.add_argument(
        "--search", metavar="WORD", help="only those with the word in name or line"
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    kind, word = arguments.kind, arguments.search
    listing = {"kinds": listed(kind, word)} if arguments.json else None
    show(catalogue(kind, word), listing, as_json=arguments.json)
    return 0
