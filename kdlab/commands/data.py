"""`kdlab data NAME`."""

import argparse

from kdlab.commands.command import CLOSELY, json_flag, say, show, tell
from kdlab.config import registry
from kdlab.config.folders import names, require_path

ABOUT = "a data set before training: classes, broken and duplicate images, views, speed"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        help="a folder, zip, tar or table of images, a card such as data/digits, or a config",
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    parser.add_argument("--html", default=None, help="write it with its views as a page")
    parser.add_argument("--closely", action="store_true", help=CLOSELY)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    name = arguments.name.removeprefix("configs/").removesuffix(".yaml")
    cards = [*registry.known_names(), *names("registry")]
    known = [*names("configs"), *(card for card in cards if card.startswith("data/"))]
    if name not in known:
        require_path(arguments.name, known)
    from kdlab.run.outputs.data_sheet import look_at  # imports torch

    looks = {"say": say, "closely": arguments.closely}
    sheet = look_at(arguments.name, *arguments.overrides, **looks)
    show(repr(sheet), sheet.to_json(), as_json=arguments.json)
    if arguments.html:
        tell(f"written to {sheet.save(arguments.html)}", as_json=arguments.json)
    return 1 if sheet.broken else 0
