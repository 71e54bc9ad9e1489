"""`kdlab export RUN`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.errors import BadInput

ABOUT = "the student alone, for plain timm or torchvision"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument(
        "--to", choices=["safetensors", "torch", "pt2", "onnx"], default="safetensors"
    )
    parser.add_argument("--out", default=None, help="file (default: student.<format>)")
    parser.add_argument("--member", default=None, help="for example served/seed0")
    json_flag(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="best epoch on validation")
    which.add_argument(
        "--global", action="store_true", dest="whole", help="of local models, all as one"
    )


def do(arguments: argparse.Namespace) -> int:
    try:
        return _written(arguments)
    except OSError as error:
        raise BadInput(
            f"The export cannot be written to {arguments.out or '.'}: {error}"
        ) from error


def _written(arguments: argparse.Namespace) -> int:
    from kdlab.run.outputs.export import export_global, export_student

    run, out, member = arguments.run, arguments.out, arguments.member
    if not arguments.whole:
        to, best = arguments.to, arguments.best
        made = export_student(run, to=to, out=out, member=member, best=best)
        show(made, _facts(made), as_json=arguments.json)
        return 0
    if arguments.to != "safetensors":
        raise BadInput("--global writes safetensors only; leave --to away.")
    made = export_global(run, out=out, member=member)
    show(made, _facts(made), as_json=arguments.json)
    return 0


def _facts(made: str) -> dict[str, str]:
    """Its first lines name the training and the file, or the folder and how many are in it."""
    member, written = made.splitlines()[:2]
    return {"member": member, "written": written.partition(" (")[0], "text": made}
