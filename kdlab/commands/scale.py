"""`kdlab scale RUN RANKS`."""

import argparse

from kdlab.commands.command import answer, json_flag, say
from kdlab.run import attach

ABOUT = "grow or shrink the group of ranks of a running student"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("ranks", type=int)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    run = attach(arguments.run)
    run.scale(arguments.ranks)
    answer({"run_id": run.id, "ranks": arguments.ranks}, as_json=arguments.json)
    say(f"{run.id} will resize to {arguments.ranks} ranks; watch: kdlab attach {run.id}")
    return 0
