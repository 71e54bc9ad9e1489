"""`kdlab recipes`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.run.recipes import recipes, recipes_table

ABOUT = "published recipes as configs, with their expected results"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show how a recipe differs from its source")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    rows = recipes(arguments.name)
    show(recipes_table(rows), {"recipes": rows}, as_json=arguments.json)
    return 0
