"""`kdlab stop RUN`."""

import argparse

from kdlab.commands.command import json_flag, show
from kdlab.session import find_job

ABOUT = "stop a run gracefully: finish the step and save"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("--now", action="store_true", help="stop it at once")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    run = find_job(arguments.run)
    if arguments.now:
        run.kill()
    else:
        run.stop()
    run.wait()
    facts = {"run_id": run.id, "state": run.state}
    show(str(run), facts, as_json=arguments.json)
    return 0
