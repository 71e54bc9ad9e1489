"""`kdlab recipes`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.run.recipes import recipes, recipes_table

ABOUT = "published recipes as configs, with what they are expected to reach"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of one: where it differs from its source")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    found = recipes(arguments.name)
    show(recipes_table(found), {"recipes": found}, as_json=arguments.json)
    return 0
