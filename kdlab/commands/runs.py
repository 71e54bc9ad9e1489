"""`kdlab runs`."""

import argparse

ABOUT = "runs, newest first; their differences; late tracking"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compare", nargs="+", metavar="RUN", help="two or more; or one of several methods"
    )
    parser.add_argument("--sync", action="store_true", help="write what MLflow has not got")
    parser.add_argument("-n", type=int, default=20, help="how many (default 20)")


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run import compare, runs

    if arguments.compare:
        print(compare(*arguments.compare))
    elif arguments.sync:
        from kdlab.run.outputs.tracking_sync import sync_all

        print(sync_all())
    else:
        print(runs(arguments.n))
    return 0
