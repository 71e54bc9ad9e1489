"""`kdlab attach [RUN]`."""

import argparse

from kdlab.commands.command import json_flag, report_run, say, show, start_run
from kdlab.run import Run
from kdlab.session import find_job

ABOUT = "watch a run; Ctrl-C leaves it running"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="last")
    # For a run that this process started, which Ctrl-C stops (`command._hand_over`).
    parser.add_argument("--since", type=float, help=argparse.SUPPRESS)
    parser.set_defaults(detach=False)
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    run = find_job(arguments.run)
    if arguments.since is not None and isinstance(run, Run):
        return start_run(lambda: run, arguments, arguments.since)
    try:
        with run.lines() as see:
            run.wait(see)
    except KeyboardInterrupt:
        say(f"{run.id} continues; watch it again with: kdlab attach {run.name}")
        return 0
    if isinstance(run, Run):
        return report_run(run, as_json=arguments.json)
    show(str(run.outcome), run.result, as_json=arguments.json)
    return 0
