"""`kdlab attach [RUN]`."""

import argparse

from kdlab.commands.command import found, report_run, say

ABOUT = "watch a run; Ctrl-C leaves it running"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="last")


def do(arguments: argparse.Namespace) -> int:
    from kdlab.run import Run

    run = found(arguments.run)
    try:
        if not isinstance(run, Run):
            # With optuna, which a run does not need.
            from kdlab.tuning.watching import Lines

            run.wait(Lines().see)
        else:
            from kdlab.report.progress import Progress

            with Progress() as progress:
                run.wait(progress.see)
    except KeyboardInterrupt:
        say(f"{run.id} goes on; watch it again with: kdlab attach {run.name}")
        return 0
    if isinstance(run, Run):
        return report_run(run, as_json=False)
    from kdlab.messages import typed
    from kdlab.tuning.outcome import SweepOutcome, printed

    print(printed(typed(SweepOutcome, run.result)))
    return 0
