"""The numbers that can be set while a run goes on, checked by the same rules as a spec."""

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
from kdlab.events.log import training_now
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.spec import ExperimentSpec, spec_of

_LR = Range(gt=0, le=100)


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that can be set while a run goes on, as it is now."""

    name: str
    value: float
    range: Range


def knobs(run: RunFolder) -> list[Knob]:
    """What can be set, as it is now, with the spec's own ranges.

    The learning rate always; weights and temperature of the loss where the member that
    trains now learns from soft labels; lt and ut where these are served to one student.
    """
    spec, now = spec_of(run), training_now(run.events)
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


def _set_so_far(run: RunFolder) -> dict[str, float]:
    member, found = training_now(run.events), dict[str, float]()
    for order in orders.OrderReader(run.path / orders.CONTROL)():
        if isinstance(order, orders.ChangeSettings) and order.member == member:
            found |= order.set
    return found


def check_values(run: RunFolder, values: Mapping[str, object]) -> None:
    """Refuse what the spec would not allow.

    Raises:
        BadInput: it cannot be set while a run goes on, or is no number.
        SpecError: it is out of its range, or does not go with the others.
    """
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
