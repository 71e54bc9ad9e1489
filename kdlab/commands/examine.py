"""`kdlab examine RUN`."""

import argparse

from kdlab.commands.command import CLOSELY, json_flag, number, say, show
from kdlab.run import attach

ABOUT = "where the students of a run and their teacher err: figures, and a page of pictures"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="id, a part of it, or last")
    parser.add_argument("--split", choices=["test", "validation"], default="test")
    parser.add_argument("--most", type=number(1), default=2000, help="images at most")
    parser.add_argument("--out", default="examination.html", help="where the page goes")
    parser.add_argument("--closely", action="store_true", help=CLOSELY)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    run = attach(arguments.run)
    result = run.examine(arguments.split, arguments.most, closely=arguments.closely)
    out = result.save(arguments.out)
    show(repr(result), result.to_json() | {"page": str(out)}, as_json=arguments.json)
    say(f"Page: {out}")
    return 0
