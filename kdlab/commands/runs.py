"""`kdlab runs`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.run import compare, runs
from kdlab.run.outputs.tracking_sync import sync_all

ABOUT = "runs, newest first; their differences; late tracking"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compare", nargs="+", metavar="RUN", help="two or more; or one of several methods"
    )
    parser.add_argument("--sync", action="store_true", help="write what MLflow has not got")
    parser.add_argument(
        "--all", action="store_true", help="archived ones (kdlab mark), too"
    )
    parser.add_argument("-n", type=int, default=20, help="how many (default 20)")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    if arguments.compare:
        found = compare(*arguments.compare)
        show(repr(found), found.to_json(), as_json=arguments.json)
    elif arguments.sync:
        done = sync_all()
        show(done, {"written": done.splitlines()}, as_json=arguments.json)
    else:
        known = runs(arguments.n, archived=arguments.all)
        show(repr(known), {"runs": known.to_json()}, as_json=arguments.json)
    return 0
