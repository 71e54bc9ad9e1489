"""`kdlab sweep SWEEP`."""

import argparse
import json

from kdlab.commands.command import json_flag, say, started, tell, tell_tracking
from kdlab.config.sweep_text import read_sweep

ABOUT = "search keys of an experiment with Optuna"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sweep", help="name under configs/sweeps/, or a path to a YAML file"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="of the sweep, such as keep=all",
    )
    parser.add_argument("--trials", type=int, default=None, help="how many in all")
    parser.add_argument("--jobs", type=int, default=None, help="how many at a time")
    parser.add_argument(
        "--study", default=None, help="its name; one that is there is gone on with"
    )
    parser.add_argument(
        "--save", default=None, metavar="NAME", help="the best as configs/NAME"
    )
    parser.add_argument("--detach", action="store_true", help="start it and return")
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    # First: a mistyped name is said at once.
    read_sweep(arguments.sweep, arguments.overrides)
    from kdlab.tuning import search
    from kdlab.tuning.handle import ProgressLines, check_name

    numbers = {"trials": arguments.trials, "jobs": arguments.jobs}
    given = {key: value for key, value in numbers.items() if value is not None}
    if arguments.save:
        check_name(arguments.save)
    wanted = search(arguments.sweep, *arguments.overrides, given)
    sweep, pressed = started(
        lambda: wanted.start(arguments.study, say), ProgressLines().see, arguments
    )
    if sweep is None:
        return 0
    if pressed > 1:
        say("stopped at once; the same command goes on with the study")
        return 130
    result = sweep.result  # raises with the reason
    tell(f"\n{sweep.outcome}\n", as_json=arguments.json)
    tell_tracking(sweep)
    say(f"Pictures: {sweep.path}/figures  ·  optuna-dashboard {result['storage']}")
    if arguments.save:
        for path in sweep.save(arguments.save):
            say(f"saved {path}")
    if arguments.json:
        print(json.dumps(result, default=str))
    return 0
