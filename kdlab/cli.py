"""The command line. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by the user."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kdlab.errors import BadInput, KdlabError

_ORDERS = (
    *("pause", "go-on", "checkpoint", "set"),
    *("add-teacher", "drain-teacher", "kill-teacher"),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.do(arguments)
    except KdlabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `kdlab list | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kdlab", description="Large-scale knowledge distillation of image models."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, do: Callable[[Any], int], about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(do=do)
        return command

    _add_running(add)
    _add_others(add)
    return parser


_Add = Callable[[str, Callable[[Any], int], str], argparse.ArgumentParser]


def _add_running(add: _Add) -> None:
    listing = add("list", _list, "what there is: configs, cards and components")
    listing.add_argument("kind", nargs="?", help="configs, losses, models, teachers ...")

    show = add("show", _show, "a config, card or component, resolved, with origins")
    show.add_argument("name")
    show.add_argument("overrides", nargs="*", metavar="key=value")

    run = add("run", _run, "run an experiment from configs/")
    run.add_argument("experiment", help="name under configs/, or a path to a YAML file")
    run.add_argument("overrides", nargs="*", metavar="key=value")
    run.add_argument("--detach", action="store_true", help="start it and return")
    run.add_argument(
        "--torchrun",
        action="store_true",
        help="only make the run folder and print the line that has torchrun start the ranks",
    )
    _json_flag(run)

    sweep = add("sweep", _sweep, "search keys of an experiment with Optuna")
    sweep.add_argument("sweep", help="name under configs/sweeps/, or a path to a YAML file")
    sweep.add_argument(
        "overrides", nargs="*", metavar="key=value", help="of the sweep, such as keep=all"
    )
    sweep.add_argument("--trials", type=int, default=None, help="how many in all")
    sweep.add_argument("--jobs", type=int, default=None, help="how many at a time")
    sweep.add_argument(
        "--study", default=None, help="its name; one that is there is gone on with"
    )
    sweep.add_argument(
        "--save", default=None, metavar="NAME", help="the best as configs/NAME"
    )
    sweep.add_argument("--detach", action="store_true", help="start it and return")
    _json_flag(sweep)

    runs = add("runs", _runs, "runs, newest first; their differences; late tracking")
    runs.add_argument(
        "--compare", nargs="+", metavar="RUN", help="two or more; or one of several methods"
    )
    runs.add_argument("--sync", action="store_true", help="write what MLflow has not got")
    runs.add_argument("-n", type=int, default=20, help="how many (default 20)")

    attach = add("attach", _attach, "watch a run; Ctrl-C leaves it running")
    attach.add_argument("run", nargs="?", default="last")

    stop = add("stop", _stop, "stop a run softly: finish the step and save")
    stop.add_argument("run")
    stop.add_argument("--now", action="store_true", help="end it at once")

    scale = add("scale", _scale, "grow or shrink the group of ranks of a running student")
    scale.add_argument("run")
    scale.add_argument("ranks", type=int)

    control = add("control", _control, "pause, save or change a run that goes on")
    control.add_argument("run")
    control.add_argument("order", choices=list(_ORDERS))
    control.add_argument(
        "values", nargs="*", metavar="VALUE", help="KEY=NUMBER of set; a teacher's name"
    )

    resume = add("resume", _resume, "go on from the newest checkpoint")
    resume.add_argument("run")
    resume.add_argument(
        "--trust-components",
        action="store_true",
        help="run the source of components that came from a notebook cell",
    )
    resume.add_argument("--detach", action="store_true")
    _json_flag(resume)


def _add_others(add: _Add) -> None:
    export = add("export", _export, "the student alone, for plain timm or torchvision")
    export.add_argument("run")
    export.add_argument(
        "--to", choices=["safetensors", "torch", "pt2", "onnx"], default="safetensors"
    )
    export.add_argument("--out", default=None, help="file (default: student.<format>)")
    export.add_argument("--member", default=None, help="for example served/seed0")
    which = export.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="best epoch on validation")
    which.add_argument(
        "--global", action="store_true", dest="whole", help="of local models, all as one"
    )

    teacher = add("teacher", _teacher, "join a teacher to the pool of a scheduler")
    teacher.add_argument("scheduler", help="address, for example tcp://10.0.0.1:8786")
    teacher.add_argument(
        "--model", default=None, help="card; default: what the pool serves"
    )
    teacher.add_argument("--name", default=None)
    teacher.add_argument("--threads", type=int, default=None, help="CPU threads")
    teacher.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    teacher.add_argument("--host", default=None, help="address to listen on")
    for name in ("ca", "cert", "key"):
        teacher.add_argument(f"--tls-{name}", default=None, help="PEM file, for tls://")
    teacher.add_argument("--insecure", action="store_true", help="plain TCP, for tcp://")
    teacher.add_argument("--port", type=int, default=0, help="of its worker; 0 is any")
    teacher.add_argument("--label-port", type=int, default=0, help="for readers; 0 is any")
    teacher.add_argument(
        "--patience", type=float, default=None, help="s without a scheduler; then it ends"
    )

    bench = add("bench", _bench, "measure side by side on this machine")
    bench.add_argument(
        "name",
        choices=[
            "ec_dnn",
            "edl_dist",
            "heterogeneous",
            "links",
            "live",
            "overhead",
            "peers",
            "pipe_bd",
            "sweep",
            "transport",
            "unlike",
        ],
    )
    bench.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="of ec_dnn: data.root=[a.zip, ...]; of heterogeneous: device=cpu",
    )
    bench.add_argument("--repeats", type=int, default=None)
    bench.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="of edl_dist and pipe_bd: served, nas, ...",
    )
    _json_flag(bench)

    simulate = add("simulate", _simulate, "predict a table or a plan on a simulated clock")
    simulate.add_argument("name", help="card under registry/simulations: edl_dist/table3")
    simulate.add_argument("overrides", nargs="*", metavar="key=value")
    _json_flag(simulate)

    reproduce = add(
        "reproduce", _reproduce, "a table or figure of the papers; without NAME a list"
    )
    reproduce.add_argument(
        "names",
        nargs="*",
        metavar="NAME or key=value",
        help="edl_dist/table3 ...; of the cards: measurement.images=[train.zip, test.zip]",
    )
    reproduce.add_argument(
        "--to", default=None, help="folder for what is written (default: reproductions)"
    )
    reproduce.add_argument(
        "--simulate-only", action="store_true", help="measure nothing on this machine"
    )
    reproduce.add_argument(
        "--keep", action="store_true", help="also as a card in ./registry/results"
    )
    _json_flag(reproduce)

    ui = add("ui", _ui, "the MLflow UI on loopback")
    ui.add_argument("--port", type=int, default=5000)
    ui.add_argument("--uri", default=None, help="default: the store beside the runs")

    doctor = add("doctor", _doctor, "what works on this machine and what to install")
    _json_flag(doctor)


def _json_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json",
        action="store_true",
        help="end stdout with one JSON object on one line",
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _list(arguments: argparse.Namespace) -> int:
    from kdlab.run.catalogue import catalogue

    print(catalogue(arguments.kind))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from kdlab.run.catalogue import describe

    print(describe(arguments.name, arguments.overrides))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from kdlab.run import load

    experiment = load(arguments.experiment, *arguments.overrides)
    if arguments.torchrun:
        ranks = experiment.resolved["aggregation"].get("ranks")
        run = experiment.prepare_for_torchrun(_say)
        print(f"torchrun --nproc-per-node {ranks} -m kdlab.run.torchrun {run.id}")
        return 0
    return _start(lambda: experiment.start(_say), arguments)


def _start(start: Callable[[], Any], arguments: argparse.Namespace) -> int:
    from kdlab.report.progress import Progress

    with Progress() as progress:
        run, pressed = _started(start, arguments, progress)
    if run is None:
        return 0
    if pressed > 1:
        _say(f"ended at once; go on from its last checkpoint with: kdlab resume {run.id}")
        return 130
    return _report(run, arguments.json)


def _started(
    start: Callable[[], Any], arguments: argparse.Namespace, seen_by: Any
) -> tuple[Any, int]:
    """Start and watch to the end; how often Ctrl-C was pressed. None when it is detached.

    Ctrl-C stops softly, a second one ends it at once.
    """
    run: Any = None
    pressed = 0

    def on_interrupt(*_: Any) -> None:
        nonlocal pressed
        if run is None:  # nothing was started yet
            raise KeyboardInterrupt
        pressed += 1
        if pressed == 1:
            _say("stopping: what is under way is saved; Ctrl-C again ends it at once")
            run.stop()
        else:
            run.kill()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        run = start()
        if arguments.detach:
            print(json.dumps({"run_id": run.id, "run_dir": str(run.path)}))
            _say(f"watch it with: kdlab attach {run.name}")
            return None, 0
        run.wait(seen_by.see)
    finally:
        signal.signal(signal.SIGINT, before)
    return run, pressed


def _report(run: Any, as_json: bool) -> int:
    result = run.result  # raises RunFailed or RunStopped with the reason
    print(f"\n{run.table()}\n", file=sys.stderr if as_json else sys.stdout)
    if result["tracking_uri"]:
        _say("Compare in MLflow: kdlab ui")
    _say(f"Student: {result['run_dir']}/members  ·  kdlab export {run.id}")
    if as_json:
        print(json.dumps(result))
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from kdlab.tuning import search
    from kdlab.tuning.handle import check_name, printed
    from kdlab.tuning.watching import Lines

    numbers = {"trials": arguments.trials, "jobs": arguments.jobs}
    given = {key: value for key, value in numbers.items() if value is not None}
    if arguments.save:
        check_name(arguments.save)
    wanted = search(arguments.sweep, *arguments.overrides, given)
    sweep, pressed = _started(
        lambda: wanted.start(arguments.study, _say), arguments, Lines()
    )
    if sweep is None:
        return 0
    if pressed > 1:
        _say("ended at once; the same command goes on with the study")
        return 130
    result = sweep.result  # raises with the reason
    print(f"\n{printed(result)}\n", file=sys.stderr if arguments.json else sys.stdout)
    if result["tracking_uri"]:
        _say("Compare in MLflow: kdlab ui")
    _say(f"Pictures: {sweep.path}/figures  ·  optuna-dashboard {result['storage']}")
    if arguments.save:
        for path in sweep.save(arguments.save):
            _say(f"saved {path}")
    if arguments.json:
        print(json.dumps(result, default=str))
    return 0


def _runs(arguments: argparse.Namespace) -> int:
    from kdlab.run import compare, runs
    from kdlab.run.catalogue import runs_table

    if arguments.compare:
        print(compare(*arguments.compare))
        return 0
    if arguments.sync:
        from kdlab.run.late_tracking import sync_all

        print(sync_all())
        return 0
    print(runs_table(runs(arguments.n)))
    return 0


def _attach(arguments: argparse.Namespace) -> int:
    run = _found(arguments.run)
    is_sweep = run.name != run.id
    try:
        if is_sweep:
            from kdlab.tuning.watching import (
                Lines,
            )  # with optuna, which a run does not need

            run.wait(Lines().see)
        else:
            from kdlab.report.progress import Progress

            with Progress() as progress:
                run.wait(progress.see)
    except KeyboardInterrupt:
        _say(f"{run.id} goes on; watch it again with: kdlab attach {run.name}")
        return 0
    if not is_sweep:
        return _report(run, as_json=False)
    from kdlab.tuning.handle import printed

    print(printed(run.result))
    return 0


def _found(name: str) -> Any:
    """A run, or a sweep as sweeps/NAME."""
    if name.startswith("sweeps/"):
        from kdlab.tuning import attach_sweep

        return attach_sweep(name.removeprefix("sweeps/"))
    from kdlab.run import attach

    return attach(name)


def _stop(arguments: argparse.Namespace) -> int:
    run = _found(arguments.run)
    if arguments.now:
        run.kill()
    else:
        run.stop()
    run.wait()
    print(run)
    return 0


def _scale(arguments: argparse.Namespace) -> int:
    from kdlab.run import attach

    run = attach(arguments.run)
    run.scale(arguments.ranks)
    _say(f"{run.id} is asked for {arguments.ranks} ranks; watch: kdlab attach {run.id}")
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    from kdlab.run.handle import resume

    return _start(lambda: resume(arguments.run, arguments.trust_components), arguments)


def _control(arguments: argparse.Namespace) -> int:
    from kdlab.run import attach

    run, order, values = attach(arguments.run), arguments.order, list(arguments.values)
    method = getattr(run, order.replace("-", "_"))
    if order == "set":
        if not values:
            for knob in run.knobs():
                print(f"{knob.name} = {knob.value:g}  ({knob.range})")
            return 0
        method(**dict(map(_number, values)))
    elif order in ("drain-teacher", "kill-teacher"):
        if len(values) != 1:
            raise BadInput(f"{order} takes the name of one teacher, such as teacher-0.")
        method(values[0])
    elif values:
        raise BadInput(f"{order} takes no values.")
    else:
        method()
    return 0


def _number(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise BadInput(f"{text!r} is not KEY=NUMBER.") from None


def _export(arguments: argparse.Namespace) -> int:
    from kdlab.run.export import export_global, export_student

    if arguments.whole:
        if arguments.to != "safetensors":
            raise BadInput("--global writes safetensors only; leave --to away.")
        print(export_global(arguments.run, out=arguments.out, member=arguments.member))
        return 0
    print(
        export_student(
            arguments.run,
            to=arguments.to,
            out=arguments.out,
            member=arguments.member,
            best=arguments.best,
        )
    )
    return 0


def _teacher(arguments: argparse.Namespace) -> int:
    from kdlab.run.join import Place, certificates, join

    return join(
        arguments.scheduler,
        model=arguments.model,
        place=Place(
            name=arguments.name,
            threads=arguments.threads,
            device=arguments.device,
            host=arguments.host,
            port=arguments.port,
            label_port=arguments.label_port,
            patience_s=arguments.patience,
        ),
        tls=certificates(
            arguments.scheduler,
            arguments.tls_ca,
            arguments.tls_cert,
            arguments.tls_key,
            insecure=arguments.insecure,
        ),
    )


def _bench(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    from kdlab.report.figures import printed

    options: dict[str, Any] = {
        name: value
        for name in ("repeats", "only")
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.overrides:
        options["overrides"] = arguments.overrides
        if arguments.name not in ("ec_dnn", "heterogeneous"):
            raise BadInput(f"bench {arguments.name} has no settings; leave KEY=VALUE away.")
    if "only" in options and arguments.name not in ("edl_dist", "pipe_bd"):
        raise BadInput(f"bench {arguments.name} has no parts; leave --only away.")
    # The name is one of argparse's choices.
    report = import_module(f"kdlab.bench.{arguments.name}").measure(**options, say=_say)
    print(printed(report), file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(report))
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    from kdlab.run.simulations import simulate

    report, table = simulate(arguments.name, arguments.overrides, _say)
    print(table, file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(report))
    return 0


def _reproduce(arguments: argparse.Namespace) -> int:
    from kdlab.reproduce.command import known, reproduce

    names = [word for word in arguments.names if "=" not in word]
    if not names and arguments.names:
        raise BadInput(
            "Say what to reproduce: kdlab reproduce NAME key=value. kdlab reproduce lists it."
        )
    if not names:
        for name, about in known().items():
            print(f"{name:22}{about}")
        return 0
    results = reproduce(
        names,
        [word for word in arguments.names if "=" in word],
        to=arguments.to,
        measures=not arguments.simulate_only,
        keeps=arguments.keep,
        say=_say,
    )
    told = []
    for result in results:
        print(result.table(), file=sys.stderr if arguments.json else sys.stdout)
        for path in result.files:
            _say(str(path))
        told.append(result.facts() | {"figures": [str(p) for p in result.figures]})
    if arguments.json:
        print(json.dumps(told[0] if len(told) == 1 else {"reproductions": told}))
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    from kdlab.run.ui import serve_ui

    return serve_ui(arguments.port, arguments.uri)


def _doctor(arguments: argparse.Namespace) -> int:
    from kdlab.run.doctor import examine, printed

    findings = examine()
    print(printed(findings), file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(findings))
    return 0 if all(f["state"] != "missing" for f in findings) else 1
