"""`kdlab scale RUN RANKS`."""

import argparse

from kdlab.commands.command import say

ABOUT = "grow or shrink the group of ranks of a running student"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("ranks", type=int)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run import attach

    run = attach(arguments.run)
    run.scale(arguments.ranks)
    say(f"{run.id} is asked for {arguments.ranks} ranks; watch: kdlab attach {run.id}")
    return 0
