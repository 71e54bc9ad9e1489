"""`kdlab stop RUN`."""

import argparse

from kdlab.commands.command import found, json_flag, show

ABOUT = "stop a run gracefully: finish the step and save"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("--now", action="store_true", help="end it at once")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    run = found(arguments.run)
    if arguments.now:
        run.kill()
    else:
        run.stop()
    run.wait()
    found_now = {"run_id": run.id, "state": run.state}
    show(str(run), found_now, as_json=arguments.json)
    return 0
