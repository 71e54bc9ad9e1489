"""`kdlab new NAME --data DIR`."""

import argparse

from kdlab.commands.command import json_flag, say, show
from kdlab.run.new_run_options import MINUTES, NewRunOptions, places

ABOUT = "a commented config and a notebook for your own photos, chosen for this machine"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the experiment: configs/NAME.yaml and NAME.ipynb")
    parser.add_argument(
        "--data", required=True, help="a folder, zip, table or URL of photos by class"
    )
    parser.add_argument(
        "--student", default=None, help="such as timm/mobilenetv3_small_050"
    )
    parser.add_argument("--teacher", default=None, help="such as timm/resnet18")
    parser.add_argument("--weights", default=None, help="of the teacher: it is not trained")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="limit of a first run here"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    wishes = NewRunOptions(
        data=arguments.data,
        student=arguments.student,
        teacher=arguments.teacher,
        weights=arguments.weights,
        minutes=arguments.minutes,
    )
    places(arguments.name, force=arguments.force)
    wishes.check()
    from kdlab.run.new import new  # imports torch

    written = new(arguments.name, wishes, force=arguments.force, say=say)
    facts = {
        "config": str(written.config),
        "notebook": str(written.notebook),
        "chosen": written.chosen.config,
        "reasons": written.chosen.reasons,
        "seconds": written.chosen.seconds,
    }
    show(str(written), facts, as_json=arguments.json)
    return 0
