"""The numbers that can be set while a run goes on, as its process wrote them down.

So an order is checked without the seconds that the classes of a spec take to import; they are
asked where a class has rules of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

from kdlab.changes import change as orders
from kdlab.config.folders import nearest
from kdlab.config.home import find_as
from kdlab.config.knob import Knob
from kdlab.errors import BadInput, Fault, SpecError
from kdlab.events.log import training_now
from kdlab.experiment.folder import RunFolder

_ORDER = "the order"


def knobs(run: RunFolder) -> list[Knob]:
    """What can be set, as it is now; of the first member while none trains.

    Raises:
        MessageError: what the run wrote down is damaged, or of another version of kdlab.
    """
    written = find_as(dict[str, list[Knob]], run.knobs, "The run itself goes on.")
    if written is None:  # it has not begun, or is of an earlier kdlab
        return []
    member = training_now(run.events)
    begin = written.get(member or "", next(iter(written.values()), []))
    found = _set_so_far(run, member)
    return [replace(knob, value=found.get(knob.name, knob.value)) for knob in begin]


def _set_so_far(run: RunFolder, member: str | None) -> dict[str, float]:
    found = dict[str, float]()
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
    known = {knob.name: knob for knob in knobs(run)}
    after = {name: knob.value for name, knob in known.items()}
    for name, value in values.items():
        if name not in known:
            raise BadInput(
                f"{name} cannot be set while a run goes on.{nearest(name, sorted(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"{name} is {value!r}; it must be a number.")
        if fault := known[name].range.fault(value):
            raise SpecError([Fault(name, fault)], about=_ORDER)
        after[name] = value
    for name, knob in known.items():
        if knob.below and after[name] >= after[knob.below]:
            words = f"is {after[name]:g} and {knob.below} {after[knob.below]:g}; it must be less"
            raise SpecError([Fault(name, words)], about=_ORDER)
    if not all(known[name].free for name in values):
        _ask_the_spec(run, after)


def _ask_the_spec(run: RunFolder, values: Mapping[str, float]) -> None:
    # Here: they import torch.
    from kdlab.config.check import construct
    from kdlab.config.load import from_dict
    from kdlab.experiment.spec import ExperimentSpec, spec_of

    tree = spec_of(run).to_dict()
    for name, value in values.items():
        part, _, field = name.partition(".")
        if field:  # all but the learning rate's factor
            tree[part] = tree[part] | {field: value}
    construct(ExperimentSpec, from_dict(tree, _ORDER))
