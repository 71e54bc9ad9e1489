"""`kdlab export RUN`."""

import argparse
import re

from kdlab.commands.command import json_flag, show
from kdlab.errors import BadInput
from kdlab.experiment.folder import find

ABOUT = "the student alone, for plain timm or torchvision"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument(
        "--to",
        choices=["safetensors", "torch", "pt2", "onnx", "int8", "timm"],
        default="safetensors",
        help="int8: ONNX in eight bits, measured beside fp32; timm: a folder for a model hub",
    )
    parser.add_argument(
        "--licence", "--license", help="of the weights, as a model hub names it: apache-2.0"
    )
    parser.add_argument(
        "--bare", action="store_true", help="ONNX without crop and resize: squares go in"
    )
    parser.add_argument("--out", default=None, help="file (default: student.<format>)")
    parser.add_argument("--member", help="as served/seed0 (default: best on validation)")
    json_flag(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="best epoch on validation")
    which.add_argument(
        "--global", action="store_true", dest="whole", help="of local models, all as one"
    )


def do(arguments: argparse.Namespace) -> int:
    try:
        return _export(arguments)
    except OSError as error:
        raise BadInput(
            f"The export cannot be written to {arguments.out or '.'}: {error}"
        ) from error


def _export(arguments: argparse.Namespace) -> int:
    find(arguments.run)
    from kdlab.run.outputs.export import export_global, export_student  # import torch

    run, out, member = arguments.run, arguments.out, arguments.member
    if not arguments.whole:
        chosen = {k: getattr(arguments, k) for k in ("to", "best", "licence", "bare")}
        text = export_student(run, out=out, member=member, **chosen)
    elif arguments.to != "safetensors":
        raise BadInput("--global writes safetensors only; omit --to.")
    else:
        text = export_global(run, out=out, member=member)
    show(text, _facts(text), as_json=arguments.json)
    return 0


def _facts(text: str) -> dict[str, str]:
    """Facts from the first lines: the training, then the file or the folder with its count."""
    member, written = text.splitlines()[:2]
    written = re.sub(r" \(\d+ networks\)$", "", written)
    return {"member": member, "written": written, "text": text}
