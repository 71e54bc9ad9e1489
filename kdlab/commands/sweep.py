"""`kdlab sweep SWEEP`."""

import argparse
import json

from kdlab.commands.command import (
    json_flag,
    overrides,
    print_text,
    report_tracking,
    say,
    show,
    start_job,
)
from kdlab.config.sweep_text import read_sweep

ABOUT = "search keys of an experiment with Optuna"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sweep", help="name under configs/sweeps/, or a path to a YAML file"
    )
    overrides(parser, "of the sweep, such as keep=all")
    parser.add_argument("--trials", type=int, help="how many in all")
    parser.add_argument("--jobs", type=int, help="how many at a time")
    parser.add_argument("--study", help="its name; an existing study continues")
    parser.add_argument("--save", metavar="NAME", help="the best as configs/NAME")
    parser.add_argument("--dry-run", action="store_true", help="check all, start nothing")
    parser.add_argument("--detach", action="store_true", help="start it and return")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    # First, so that a mistyped name fails at once.
    read_sweep(arguments.sweep, arguments.overrides)
    from kdlab.tuning import search
    from kdlab.tuning.handle import ProgressLines, check_name

    numbers = {"trials": arguments.trials, "jobs": arguments.jobs}
    limits = {key: value for key, value in numbers.items() if value is not None}
    if arguments.save:
        check_name(arguments.save)
    wanted = search(arguments.sweep, *arguments.overrides, limits)
    if arguments.dry_run:
        wanted.check(say)
        facts = {"trials": wanted.spec.trials, "space": sorted(wanted.spec.space)}
        show(repr(wanted), {"sweep": wanted.name} | facts, as_json=arguments.json)
        return 0
    sweep, pressed = start_job(
        lambda: wanted.start(arguments.study, say), ProgressLines().on_event, arguments
    )
    if sweep is None:
        return 0
    if pressed > 1:
        say("stopped at once; the same command continues the study")
        return 130
    result = sweep.result  # raises with the reason
    print_text(f"\n{sweep.outcome}\n", as_json=arguments.json)
    report_tracking(sweep)
    say(f"Pictures: {sweep.path}/figures  ·  optuna-dashboard {result['storage']}")
    if arguments.save:
        for path in sweep.save(arguments.save):
            say(f"saved {path}")
    if arguments.json:
        print(json.dumps(result, default=str))
    return 0
