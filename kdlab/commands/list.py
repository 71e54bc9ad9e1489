"""`kdlab list [KIND]`."""

import argparse

ABOUT = "what there is: configs, cards and components"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="configs, losses, models, teachers ...")


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.catalogue import catalogue

    print(catalogue(arguments.kind))
    return 0
