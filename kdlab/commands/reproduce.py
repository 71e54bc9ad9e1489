"""`kdlab reproduce [NAME ...]`."""

import argparse

from kdlab.commands.command import answer, json_flag, print_text, say, show
from kdlab.config import evidence
from kdlab.errors import BadInput
from kdlab.report.table import folded_table

ABOUT = "a table or figure of the papers; without NAME a list"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar="NAME or key=value",
        help="edl_dist/table3 ...; of the cards: measurement.images=[train.zip, test.zip]",
    )
    parser.add_argument(
        "--to", default=None, help="folder for written files (default: reproductions)"
    )
    parser.add_argument(
        "--simulate-only", action="store_true", help="measure nothing on this machine"
    )
    parser.add_argument(
        "--keep", action="store_true", help="also in the tables of benchmarks/results"
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="list kept results whose code has changed since they were measured",
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    command = evidence.module("benchmarks.reproduce.command")
    if arguments.stale:
        older = command.stale()
        lines = [f"{f['command']}\n    changed: {', '.join(f['changed'])}" for f in older]
        lines.append(f"{len(older)} kept results are older than their code.")
        show("\n".join(lines), {"stale": older}, as_json=arguments.json)
        return 0
    overrides = [word for word in arguments.names if "=" in word]
    names = [word for word in arguments.names if "=" not in word]
    if not names and overrides:
        raise BadInput(
            "Name what to reproduce: kdlab reproduce NAME key=value. kdlab reproduce lists all."
        )
    if not names:
        known = command.known()
        show(folded_table(list(known.items())), {"known": known}, as_json=arguments.json)
        return 0
    results = command.reproduce(
        names,
        overrides,
        to=arguments.to,
        measures=not arguments.simulate_only,
        keeps=arguments.keep,
        say=say,
    )
    facts = []
    for result in results:
        print_text(result.table(), as_json=arguments.json)
        say("\n".join(map(str, result.files)))
        facts.append(result.facts() | {"figures": [str(p) for p in result.figures]})
    reproduced = facts[0] if len(facts) == 1 else {"reproductions": facts}
    answer(reproduced, as_json=arguments.json)
    return 0
