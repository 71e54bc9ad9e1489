"""Orders to a run that goes on: lines that its processes read (kdlab/control/orders.py).

Bad orders are found here, by the same rules as a spec, and never reach the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kdlab.config import Range
from kdlab.config.check import construct
from kdlab.config.folders import nearest
from kdlab.config.load import from_dict
from kdlab.config.spec import ranges_of
from kdlab.control import orders
from kdlab.control.steering import LR_FACTOR, settings_of
from kdlab.errors import BadInput
from kdlab.events.log import read_all, select
from kdlab.events.runs import MemberDone, MemberStarted
from kdlab.events.teachers import PoolReady
from kdlab.experiment.folder import ENDED, RunFolder
from kdlab.experiment.spec import ExperimentSpec, spec_of

_LR = Range(gt=0, le=100)
_OF_TEACHERS = ("add_teacher", "drain_teacher", "kill_teacher")


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that can be set while a run goes on, as it is now."""

    name: str
    value: float
    range: Range


def send(
    run: RunFolder,
    event: str,
    values: Mapping[str, float] | None = None,
    name: str | None = None,
) -> None:
    """Append an order (a name of orders.KINDS) for the member that trains now.

    Raises:
        BadInput: the run has ended, or cannot do that; a name that is unknown.
        SpecError: a value that the spec would not allow.
    """
    state = run.status().state
    if state in ENDED:
        raise BadInput(f"Run {run.run_id} is {state}; only a running one takes orders.")
    # As it was written: a spec with components of a notebook cell is known there only.
    run.check_format()
    told = run.resolved()
    if event in _OF_TEACHERS:
        pool = (told.get("teacher_pool") or {}).get("type")
        _check_teacher(run, pool, event, name)
    if values is not None:
        _check_values(run, values)
    member = _member(run)
    if member is None:
        raise BadInput(
            f"Run {run.run_id} does not train its student at the moment: data, teacher or the "
            "next member are being prepared. Try again when it does."
        )
    said = {"set": values, "name": name}
    data = {key: value for key, value in said.items() if value is not None}
    orders.append(run.path, orders.order(event, member, data))


def knobs(run: RunFolder) -> list[Knob]:
    """What can be set, as it is now, with the spec's own ranges.

    The learning rate always; weights and temperature of the loss where the member that
    trains now learns from soft labels; lt and ut where these are served to one student.
    """
    spec, now = spec_of(run), _member(run)
    source = next((m.source for m in spec.members() if m.name == now), spec.soft_labels)
    taught = source.needs_teacher != "none" and spec.method.steers_loss
    values = settings_of(spec.loss if taught else None)
    of_loss = ranges_of(type(spec.loss))
    ranges = {name: of_loss.get(name.removeprefix("loss."), Range()) for name in values}
    ranges[LR_FACTOR] = _LR  # the first of them
    if spec.method.steers_thresholds and now is not None:
        for name, value in source.adjustable(spec.train.batch).items():
            values[f"soft_labels.{name}"] = value
            ranges[f"soft_labels.{name}"] = ranges_of(type(source)).get(name, Range())
    values |= _set_so_far(run)
    return [Knob(name, values[name], allowed) for name, allowed in ranges.items()]


def _member(run: RunFolder) -> str | None:
    """That trains now."""
    last = None
    for event in read_all(run.events):
        if isinstance(event, MemberStarted | MemberDone):
            last = event.member if isinstance(event, MemberStarted) else None
    return last


def _set_so_far(run: RunFolder) -> dict[str, float]:
    member, found = _member(run), dict[str, float]()
    for order in orders.OrderReader(run.path / orders.CONTROL)():
        if isinstance(order, orders.ChangeSettings) and order.member == member:
            found |= order.set
    return found


def _check_values(run: RunFolder, values: Mapping[str, object]) -> None:
    numbers = dict[str, float]()
    spec, known = spec_of(run), {knob.name for knob in knobs(run)}
    for name, value in values.items():
        if name not in known:
            raise BadInput(
                f"{name} cannot be set while a run goes on.{nearest(name, sorted(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"{name} is {value!r}; it must be a number.")
        numbers[name] = value
    if LR_FACTOR in numbers and (fault := _LR.fault(numbers[LR_FACTOR])):
        raise BadInput(f"{LR_FACTOR} {fault}.")
    tree = spec.to_dict()
    for name, value in (_set_so_far(run) | numbers).items():
        if name != LR_FACTOR:
            part, _, field = name.partition(".")
            tree[part] = tree[part] | {field: value}
    construct(ExperimentSpec, from_dict(tree, "the order"))


def _check_teacher(run: RunFolder, pool: str | None, event: str, name: str | None) -> None:
    up = any(True for _ in select(run.events, PoolReady))
    if pool != "cluster/local_pool" or not up:
        raise BadInput(
            f"Run {run.run_id} has no teachers of its own; only those of cluster/local_pool "
            "are started and ended from here. Others join with kdlab teacher."
        )
    if event != "add_teacher" and not name:
        raise BadInput(f"{event} needs the name of a teacher, such as teacher-0.")
