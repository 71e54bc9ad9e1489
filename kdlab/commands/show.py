"""`kdlab show NAME`."""

import argparse

ABOUT = "a config, card or component, resolved, with origins"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.catalogue import describe

    print(describe(arguments.name, arguments.overrides))
    return 0
