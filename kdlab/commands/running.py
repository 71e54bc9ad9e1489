"""Commands that start runs and sweeps, go on with them, watch and end them."""

import json

from kdlab.commands.command import (
    DETACH,
    JSON,
    OVERRIDES,
    RUN,
    Arguments,
    command,
    flag,
    found,
    option,
    report_run,
    say,
    start_run,
    started,
    tell,
    tell_tracking,
)


@command(
    "run an experiment from configs/",
    option("experiment", help="name under configs/, or a path to a YAML file"),
    OVERRIDES,
    DETACH,
    flag(
        "--torchrun",
        "only make the run folder and print the line that has torchrun start the ranks",
    ),
    JSON,
)
def run(arguments: Arguments) -> int:
    from kdlab.run import load

    experiment = load(arguments.experiment, *arguments.overrides)
    if arguments.torchrun:
        ranks = experiment.resolved["aggregation"].get("ranks")
        made = experiment.prepare_for_torchrun(say)
        print(f"torchrun --nproc-per-node {ranks} -m kdlab.run.torchrun {made.id}")
        return 0
    return start_run(lambda: experiment.start(say), arguments)


@command(
    "go on from the newest checkpoint",
    RUN,
    flag(
        "--trust-components", "run the source of components that came from a notebook cell"
    ),
    flag(
        "--anew",
        "where all checkpoints of a training are damaged, put them aside and begin it anew",
    ),
    DETACH,
    JSON,
)
def resume(arguments: Arguments) -> int:
    from kdlab.run.handle.run import resume as go_on

    name, trusted = arguments.run, arguments.trust_components
    return start_run(lambda: go_on(name, trusted, arguments.anew), arguments)


@command(
    "search keys of an experiment with Optuna",
    option("sweep", help="name under configs/sweeps/, or a path to a YAML file"),
    option(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="of the sweep, such as keep=all",
    ),
    option("--trials", type=int, help="how many in all"),
    option("--jobs", type=int, help="how many at a time"),
    option("--study", help="its name; one that is there is gone on with"),
    option("--save", metavar="NAME", help="the best as configs/NAME"),
    DETACH,
    JSON,
)
def sweep(arguments: Arguments) -> int:
    from kdlab.tuning import search
    from kdlab.tuning.handle import check_name
    from kdlab.tuning.watching import Lines

    numbers = {"trials": arguments.trials, "jobs": arguments.jobs}
    given = {key: value for key, value in numbers.items() if value is not None}
    if arguments.save:
        check_name(arguments.save)
    wanted = search(arguments.sweep, *arguments.overrides, given)
    sweep, pressed = started(
        lambda: wanted.start(arguments.study, say), Lines().see, arguments
    )
    if sweep is None:
        return 0
    if pressed > 1:
        say("ended at once; the same command goes on with the study")
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


@command("watch a run; Ctrl-C leaves it running", option("run", nargs="?", default="last"))
def attach(arguments: Arguments) -> int:
    from kdlab.run import Run

    run = found(arguments.run)
    try:
        with run.lines() as see:
            run.wait(see)
    except KeyboardInterrupt:
        say(f"{run.id} goes on; watch it again with: kdlab attach {run.name}")
        return 0
    if isinstance(run, Run):
        return report_run(run, as_json=False)
    print(run.outcome)
    return 0


@command(
    "stop a run gracefully: finish the step and save", RUN, flag("--now", "end it at once")
)
def stop(arguments: Arguments) -> int:
    run = found(arguments.run)
    if arguments.now:
        run.kill()
    else:
        run.stop()
    run.wait()
    print(run)
    return 0
