"""`kdlab attach [RUN]`."""

import argparse

from kdlab.commands.command import found, json_flag, report_run, say, show

ABOUT = "watch a run; Ctrl-C leaves it running"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="last")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run import Run

    run = found(arguments.run)
    try:
        with run.lines() as see:
            run.wait(see)
    except KeyboardInterrupt:
        say(f"{run.id} goes on; watch it again with: kdlab attach {run.name}")
        return 0
    if isinstance(run, Run):
        return report_run(run, as_json=arguments.json)
    show(str(run.outcome), run.result, as_json=arguments.json)
    return 0
