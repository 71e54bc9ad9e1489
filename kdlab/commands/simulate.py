"""`kdlab simulate NAME`."""

import argparse

from kdlab.commands.command import json_flag, overrides, say, show

ABOUT = "predict a table or a plan on a simulated clock"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="card under registry/simulations: edl_dist/table3")
    overrides(parser)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.simulations import simulate

    report, table = simulate(arguments.name, arguments.overrides, say)
    show(table, report, as_json=arguments.json)
    return 0
