"""`kdlab predict RUN IMAGE...`."""

import argparse
from pathlib import Path

from kdlab.commands.command import json_flag, show
from kdlab.config.folders import require_path
from kdlab.experiment.folder import find

ABOUT = "what the student of a run says of photos"


def options(parser: argparse.ArgumentParser) -> None:
    of_student(parser)
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    parser.add_argument("--top", type=int, default=3, help="classes for each image")
    json_flag(parser)


def of_student(parser: argparse.ArgumentParser) -> None:
    """Which student is asked."""
    parser.add_argument(
        "run",
        help="id, a part of it, last; or what was exported: .onnx, .safetensors, or a folder",
    )
    parser.add_argument("--member", help="as served/seed0 (default: best on validation)")
    parser.add_argument(
        "--best", action="store_true", help="weights of the best epoch on validation"
    )


def check_student(run: str) -> None:
    """Refuse, as NotFoundError, what is nowhere, before torch is imported."""
    asked = Path(run).expanduser()
    if asked.suffix in (".onnx", ".safetensors"):
        require_path(run)
    elif not asked.is_dir():
        find(run)


def do(arguments: argparse.Namespace) -> int:
    check_student(arguments.run)
    for image in arguments.images:
        require_path(image)
    from kdlab.run.outputs.prediction import answers  # imports torch

    found = answers(
        arguments.run,
        arguments.images,
        arguments.top,
        arguments.member,
        best=arguments.best,
    )
    facts = {"predictions": found.to_json(), "taken": found.taken}
    show(repr(found), facts, as_json=arguments.json)
    return 0
