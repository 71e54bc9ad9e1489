"""`kdlab runs`."""

import argparse

from kdlab.commands.command import json_flag, number, show
from kdlab.run import compare, runs
from kdlab.run.outputs.tracking_sync import sync_all

ABOUT = "list runs, newest first; compare them; sync MLflow"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compare",
        nargs="+",
        metavar="RUN",
        help="two or more; or one of several trainings",
    )
    parser.add_argument("--sync", action="store_true", help="write to MLflow what it lacks")
    parser.add_argument(
        "--all", action="store_true", help="include archived runs (kdlab mark)"
    )
    parser.add_argument("-n", type=number(1), default=20, help="how many (default 20)")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    if arguments.compare:
        comparison = compare(*arguments.compare)
        show(repr(comparison), comparison.to_json(), as_json=arguments.json)
    elif arguments.sync:
        done = sync_all()
        show(done, {"written": done.splitlines()}, as_json=arguments.json)
    else:
        listed = runs(arguments.n, archived=arguments.all)
        show(repr(listed), {"runs": listed.to_json()}, as_json=arguments.json)
    return 0
