"""`kdlab label RUN FOLDER`."""

import argparse

from kdlab.commands.command import say
from kdlab.commands.predict import check_student, student_options
from kdlab.config.folders import require_path

ABOUT = "a table (CSV) of a student's predictions for photos, least certain first"


def options(parser: argparse.ArgumentParser) -> None:
    student_options(parser)
    parser.add_argument("folder", help="of images, or a zip or tar file of them")
    parser.add_argument("--out", help="file of the table (default: standard output)")
    parser.add_argument("--force", action="store_true", help="overwrite it")
    parser.add_argument("--by-name", action="store_true", help="in the order of names")


def do(arguments: argparse.Namespace) -> int:
    check_student(arguments.run)
    require_path(arguments.folder)
    from kdlab.run.outputs.prediction import label  # imports torch

    chosen = {k: vars(arguments)[k] for k in ("member", "best", "by_name", "force")}
    label(arguments.run, arguments.folder, arguments.out, say=say, **chosen)
    return 0
