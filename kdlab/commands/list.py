"""`kdlab list [KIND] [--search WORD]`."""

import argparse

ABOUT = "what there is: configs, cards and components"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", nargs="?", help="configs, losses, models, teachers ..., or all"
    )
    parser.add_argument(
        "--search", metavar="WORD", help="only what has it in its name or its line"
    )


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.catalogue import catalogue

    print(catalogue(arguments.kind, arguments.search))
    return 0
