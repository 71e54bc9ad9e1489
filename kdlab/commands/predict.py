"""`kdlab predict RUN IMAGE...`."""

import argparse

from kdlab.commands.command import json_flag, show

ABOUT = "what the student of a run says of photos"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        help="id, a part of it, last; or what was exported: .onnx, .safetensors, or a folder",
    )
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    parser.add_argument("--top", type=int, default=3, help="classes for each image")
    parser.add_argument("--member", help="as served/seed0 (default: best on validation)")
    parser.add_argument(
        "--best", action="store_true", help="weights of the best epoch on validation"
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run.outputs.prediction import answers

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
