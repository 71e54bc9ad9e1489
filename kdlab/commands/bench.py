"""`kdlab bench NAME`."""

import argparse

from kdlab.commands.command import json_flag, say, show
from kdlab.config import evidence
from kdlab.errors import BadInput

ABOUT = "measure side by side on this machine"
_NAMES = (
    *("data", "ec_dnn", "edl_dist", "gpu", "links", "live", "overhead", "peers"),
    *("pipe_bd", "soak", "storm", "sweep", "teacher", "transport", "unlike"),
)
_WITH_SETTINGS = ("data", "ec_dnn", "soak")
_WITH_PARTS = ("edl_dist", "gpu", "pipe_bd", "storm", "teacher")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=_NAMES)
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="of data: root=PHOTOS, files=0; of ec_dnn: data.root=[a.zip, ...]; "
        "of soak: minutes=5",
    )
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="of edl_dist, gpu, pipe_bd, storm and teacher: served, nas, resnet20_32, ...",
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.report.figures import printed

    given: dict[str, object] = {"repeats": arguments.repeats, "only": arguments.only}
    if arguments.overrides:
        given["overrides"] = arguments.overrides
        if arguments.name not in _WITH_SETTINGS:
            raise BadInput(f"bench {arguments.name} has no settings; leave KEY=VALUE away.")
    if arguments.only is not None and arguments.name not in _WITH_PARTS:
        raise BadInput(f"bench {arguments.name} has no parts; leave --only away.")
    chosen = {name: value for name, value in given.items() if value is not None}
    # The name is one of argparse's choices.
    report = evidence.module(f"benchmarks.{arguments.name}").measure(**chosen, say=say)
    show(printed(report), report, as_json=arguments.json)
    return 0
