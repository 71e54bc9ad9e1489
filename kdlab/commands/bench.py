"""`kdlab bench NAME`."""

import argparse

from kdlab.commands.command import json_flag, number, overrides, say, show
from kdlab.config import evidence
from kdlab.errors import BadInput

ABOUT = "measure side by side on this machine"
_NAMES = (
    *("data", "ec_dnn", "edl_dist", "gpu", "links", "live", "overhead", "peers"),
    *("pipe_bd", "soak", "storm", "sweep", "teacher", "transport", "unlike"),
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=_NAMES)
    of_each = "of data: root=PHOTOS, files=0; of ec_dnn: data.root=[a.zip, ...]; "
    overrides(parser, f"{of_each}of soak: minutes=5")
    parser.add_argument("--repeats", type=number(1))
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="of edl_dist, gpu, pipe_bd, storm and teacher: served, nas, resnet20_32, ...",
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.report.figures import printed

    name, benches = arguments.name, evidence.module("benchmarks")
    options = {key: getattr(arguments, key) for key in ("repeats", "only", "overrides")}
    chosen = {key: value for key, value in options.items() if value or value == 0}
    if "overrides" in chosen and name not in benches.WITH_SETTINGS:
        raise BadInput(f"bench {name} has no settings; omit key=value.")
    if "only" in chosen and name not in benches.WITH_PARTS:
        raise BadInput(f"bench {name} has no parts; omit --only.")
    if "repeats" in chosen and name == "soak":
        raise BadInput("bench soak takes no repeats; omit --repeats.")
    # The name is one of argparse's choices.
    report = evidence.module(f"benchmarks.{name}").measure(**chosen, say=say)
    show(printed(report), report, as_json=arguments.json)
    return 0
