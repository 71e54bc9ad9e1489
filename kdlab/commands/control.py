"""`kdlab control RUN ORDER`."""

import argparse

from kdlab.changes.change import Change
from kdlab.commands.command import answer, json_flag, say, show
from kdlab.errors import BadInput
from kdlab.run import attach

ABOUT = "pause, save or change a running run"
_CHANGES = [kind.replace("_", "-") for kind in Change.KINDS if kind != "scale"]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("order", choices=_CHANGES)
    parser.add_argument(
        "values",
        nargs="*",
        default=[],
        metavar="VALUE",
        help="KEY=NUMBER of set; a step to go back to; a teacher's name",
    )
    json_flag(parser)


def do(arguments: argparse.Namespace) -> int:
    run, order, values = attach(arguments.run), arguments.order, list(arguments.values)
    method = getattr(run, order.replace("-", "_"))
    if order == "set":
        if not values:
            tunables = run.tunables()
            lines = [f"{one.name} = {one.value:g}  ({one.range})" for one in tunables]
            now = {one.name: one.value for one in tunables}
            show("\n".join(lines), {"run_id": run.id, "now": now}, as_json=arguments.json)
            return 0
        method(**dict(map(_number, values)))
    elif order == "back":
        if len(values) > 1 or not all(map(str.isdecimal, values)):
            raise BadInput("back takes nothing, or a step such as 4200.")
        say(f"{run.id} goes back to the checkpoint of step {method(*map(int, values)):,}")
    elif order in ("drain-teacher", "kill-teacher"):
        if len(values) != 1:
            raise BadInput(f"{order} takes the name of one teacher, such as teacher-0.")
        method(values[0])
    elif values:
        raise BadInput(f"{order} takes no values.")
    else:
        method()
    answer({"run_id": run.id, "order": order, "values": values}, as_json=arguments.json)
    return 0


def _number(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise BadInput(f"{text!r} is not KEY=NUMBER.") from None
