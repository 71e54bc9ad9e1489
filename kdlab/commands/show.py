"""`kdlab show NAME`."""

import argparse

from kdlab.commands.command import json_flag, overrides, show
from kdlab.run.catalogue import describe, described

ABOUT = "a config, card or component, resolved, with origins; the page of a check"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")
    overrides(parser)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    name, overrides = arguments.name, arguments.overrides
    if name.upper().startswith("KD-"):
        from kdlab.checks import check_of  # imports numpy

        check = check_of(name)
        facts = {
            "code": check.code,
            "title": check.title,
            "level": check.level,
            "do": check.do,
        }
        show(check.page(), facts, as_json=arguments.json)
        return 0
    sheet = described(name, overrides) if arguments.json else None
    show(describe(name, overrides), sheet, as_json=arguments.json)
    return 0
