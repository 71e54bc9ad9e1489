"""`kdlab predict RUN IMAGE...`."""

import argparse

from kdlab.commands.command import json_flag, number, show
from kdlab.config.folders import require_path, user_path
from kdlab.experiment.folder import find

ABOUT = "classify photos with the student of a run"


def options(parser: argparse.ArgumentParser) -> None:
    student_options(parser)
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    parser.add_argument("--top", type=number(1), default=3, help="classes for each image")
    json_flag(parser)


def student_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a student."""
    parser.add_argument(
        "run",
        help="id, a part of it, last; or an export: .onnx, .safetensors, or a folder",
    )
    parser.add_argument("--member", help="as served/seed0 (default: best on validation)")
    parser.add_argument(
        "--best", action="store_true", help="weights of the best epoch on validation"
    )


def check_student(run: str) -> None:
    """Refuse a missing run or file, as NotFoundError, before torch is imported."""
    asked = user_path(run)
    if asked.suffix in (".onnx", ".safetensors"):
        require_path(run)
    elif not asked.is_dir():
        find(run)


def do(arguments: argparse.Namespace) -> int:
    check_student(arguments.run)
    for image in arguments.images:
        require_path(image)
    from kdlab.run.outputs.prediction import answers  # imports torch

    run, top, member = arguments.run, arguments.top, arguments.member
    predictions = answers(run, arguments.images, top, member, best=arguments.best)
    facts = {"predictions": predictions.to_json(), "taken": predictions.taken}
    show(repr(predictions), facts, as_json=arguments.json)
    return 0
