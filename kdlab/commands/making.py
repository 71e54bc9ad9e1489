"""Commands that make something of runs, cards and this machine: export and all tables."""

import json
from importlib import import_module

from kdlab.commands.command import (
    JSON,
    OVERRIDES,
    RUN,
    Arguments,
    command,
    flag,
    one_of,
    option,
    say,
    show,
    tell,
)
from kdlab.errors import BadInput

_BENCHMARKS = (
    *("ec_dnn", "edl_dist", "heterogeneous", "links", "live", "overhead"),
    *("peers", "pipe_bd", "sweep", "transport", "unlike"),
)
_WITH_SETTINGS = ("ec_dnn", "heterogeneous")
_WITH_PARTS = ("edl_dist", "pipe_bd")


@command(
    "the student alone, for plain timm or torchvision",
    RUN,
    option("--to", choices=["safetensors", "torch", "pt2", "onnx"], default="safetensors"),
    option("--out", help="file (default: student.<format>)"),
    option("--member", help="for example served/seed0"),
    one_of(
        flag("--best", "best epoch on validation"),
        flag("--global", "of local models, all as one", dest="whole"),
    ),
)
def export(arguments: Arguments) -> int:
    from kdlab.run.outputs.export import export_global, export_student

    run, out, member = arguments.run, arguments.out, arguments.member
    if not arguments.whole:
        to, best = arguments.to, arguments.best
        print(export_student(run, to=to, out=out, member=member, best=best))
        return 0
    if arguments.to != "safetensors":
        raise BadInput("--global writes safetensors only; leave --to away.")
    print(export_global(run, out=out, member=member))
    return 0


@command(
    "measure side by side on this machine",
    option("name", choices=_BENCHMARKS),
    option(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="of ec_dnn: data.root=[a.zip, ...]; of heterogeneous: device=cpu",
    ),
    option("--repeats", type=int),
    option(
        "--only",
        nargs="+",
        metavar="PART",
        help="of edl_dist and pipe_bd: served, nas, ...",
    ),
    JSON,
)
def bench(arguments: Arguments) -> int:
    from kdlab.report.figures import printed

    given: dict[str, object] = {"repeats": arguments.repeats, "only": arguments.only}
    if arguments.overrides:
        given["overrides"] = arguments.overrides
        if arguments.name not in _WITH_SETTINGS:
            raise BadInput(f"bench {arguments.name} has no settings; leave KEY=VALUE away.")
    if arguments.only is not None and arguments.name not in _WITH_PARTS:
        raise BadInput(f"bench {arguments.name} has no parts; leave --only away.")
    chosen = {name: value for name, value in given.items() if value is not None}
    # The name is one of argparse's choices.
    report = import_module(f"kdlab.bench.{arguments.name}").measure(**chosen, say=say)
    show(printed(report), report, as_json=arguments.json)
    return 0


@command(
    "predict a table or a plan on a simulated clock",
    option("name", help="card under registry/simulations: edl_dist/table3"),
    OVERRIDES,
    JSON,
)
def simulate(arguments: Arguments) -> int:
    from kdlab.run.simulations import simulate as predict

    report, table = predict(arguments.name, arguments.overrides, say)
    show(table, report, as_json=arguments.json)
    return 0


@command(
    "a table or figure of the papers; without NAME a list",
    option(
        "names",
        nargs="*",
        default=[],
        metavar="NAME or key=value",
        help="edl_dist/table3 ...; of the cards: measurement.images=[train.zip, test.zip]",
    ),
    option("--to", help="folder for what is written (default: reproductions)"),
    flag("--simulate-only", "measure nothing on this machine"),
    flag("--keep", "also as a card in ./registry/results"),
    JSON,
)
def reproduce(arguments: Arguments) -> int:
    from kdlab.reproduce.command import known
    from kdlab.reproduce.command import reproduce as reproduced

    overrides = [word for word in arguments.names if "=" in word]
    names = [word for word in arguments.names if "=" not in word]
    if not names and overrides:
        raise BadInput(
            "Say what to reproduce: kdlab reproduce NAME key=value. kdlab reproduce lists it."
        )
    if not names:
        for name, about in known().items():
            print(f"{name:22}{about}")
        return 0
    results = reproduced(
        names,
        overrides,
        to=arguments.to,
        measures=not arguments.simulate_only,
        keeps=arguments.keep,
        say=say,
    )
    told = []
    for result in results:
        tell(result.table(), as_json=arguments.json)
        for path in result.files:
            say(str(path))
        told.append(result.facts() | {"figures": [str(p) for p in result.figures]})
    if arguments.json:
        print(json.dumps(told[0] if len(told) == 1 else {"reproductions": told}))
    return 0
