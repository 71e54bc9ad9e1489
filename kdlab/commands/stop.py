"""`kdlab stop RUN`."""

import argparse

from kdlab.commands.command import found

ABOUT = "stop a run gracefully: finish the step and save"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("--now", action="store_true", help="end it at once")


def do(arguments: argparse.Namespace) -> int:
    run = found(arguments.run)
    if arguments.now:
        run.kill()
    else:
        run.stop()
    run.wait()
    print(run)
    return 0
