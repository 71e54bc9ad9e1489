"""Commands that change a run while it goes on, and its pool: control, scale, teacher."""

from kdlab.commands.command import RUN, Arguments, command, flag, option, say
from kdlab.control.orders import KINDS
from kdlab.errors import BadInput


@command(
    "pause, save or change a run that goes on",
    RUN,
    option("order", choices=[kind.replace("_", "-") for kind in KINDS]),
    option(
        "values",
        nargs="*",
        default=[],
        metavar="VALUE",
        help="KEY=NUMBER of set; a teacher's name",
    ),
)
def control(arguments: Arguments) -> int:
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


@command(
    "grow or shrink the group of ranks of a running student", RUN, option("ranks", type=int)
)
def scale(arguments: Arguments) -> int:
    from kdlab.run import attach

    run = attach(arguments.run)
    run.scale(arguments.ranks)
    say(f"{run.id} is asked for {arguments.ranks} ranks; watch: kdlab attach {run.id}")
    return 0


@command(
    "join a teacher to the pool of a scheduler",
    option("scheduler", help="address, for example tcp://10.0.0.1:8786"),
    option("--model", help="card; default: what the pool serves"),
    option("--name"),
    option("--threads", type=int, help="CPU threads"),
    option("--device", choices=["auto", "cpu", "cuda"], default="auto"),
    option("--host", help="address to listen on"),
    *(
        option(f"--tls-{name}", help="PEM file, for tls://")
        for name in ("ca", "cert", "key")
    ),
    flag("--insecure", "plain TCP, for tcp://"),
    option("--port", type=int, default=0, help="of its worker; 0 is any"),
    option("--label-port", type=int, default=0, help="for readers; 0 is any"),
    option("--patience", type=float, help="s without a scheduler; then it ends"),
)
def teacher(arguments: Arguments) -> int:
    from kdlab.cluster.child_configs import TeacherConfig
    from kdlab.run.join import certificates, join

    tls = certificates(
        arguments.scheduler,
        arguments.tls_ca,
        arguments.tls_cert,
        arguments.tls_key,
        insecure=arguments.insecure,
    )
    config = TeacherConfig(
        scheduler=arguments.scheduler,
        name=arguments.name or "",
        host=arguments.host or "",
        threads=arguments.threads or 0,
        device=arguments.device,
        tls=tls,
        port=arguments.port,
        label_port=arguments.label_port,
        patience_s=arguments.patience,
    )
    return join(config, arguments.model)
