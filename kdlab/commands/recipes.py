"""`kdlab recipes`."""

import argparse

from kdlab.commands.command import json_flag, show

ABOUT = "published recipes as configs, with what they are expected to reach"


def options(parser: argparse.ArgumentParser) -> None:
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.recipes import recipes, recipes_table

    found = recipes()
    show(recipes_table(found), {"recipes": found}, as_json=arguments.json)
    return 0
