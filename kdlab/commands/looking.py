"""Commands that show what there is: list, show, runs, ui, doctor."""

from kdlab.commands.command import JSON, OVERRIDES, Arguments, command, flag, option, show


@command(
    "what there is: configs, cards and components",
    option("kind", nargs="?", help="configs, losses, models, teachers ..., or all"),
    option("--search", metavar="WORD", help="only what has it in its name or its line"),
)
def list_names(arguments: Arguments) -> int:
    from kdlab.run.catalogue import catalogue

    print(catalogue(arguments.kind, arguments.search))
    return 0


@command("a config, card or component, resolved, with origins", option("name"), OVERRIDES)
def show_name(arguments: Arguments) -> int:
    from kdlab.run.catalogue import describe

    print(describe(arguments.name, arguments.overrides))
    return 0


@command(
    "runs, newest first; their differences; late tracking",
    option(
        "--compare", nargs="+", metavar="RUN", help="two or more; or one of several methods"
    ),
    flag("--sync", "write what MLflow has not got"),
    option("-n", type=int, default=20, help="how many (default 20)"),
)
def runs(arguments: Arguments) -> int:
    from kdlab.run import compare
    from kdlab.run import runs as newest

    if arguments.compare:
        print(compare(*arguments.compare))
    elif arguments.sync:
        from kdlab.run.outputs.tracking_sync import sync_all

        print(sync_all())
    else:
        print(newest(arguments.n))
    return 0


@command(
    "the MLflow UI on loopback",
    option("--port", type=int, default=5000),
    option("--uri", help="default: the store beside the runs"),
)
def ui(arguments: Arguments) -> int:
    from kdlab.run.ui import serve_ui

    return serve_ui(arguments.port, arguments.uri)


@command("what works on this machine and what to install", JSON)
def doctor(arguments: Arguments) -> int:
    from kdlab.run.doctor import examine, printed

    findings = examine()
    show(printed(findings), findings, as_json=arguments.json)
    return 0 if all(f["state"] != "missing" for f in findings) else 1
