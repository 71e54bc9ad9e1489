"""Changes of a run under way: its tunables, and the lines of changes its processes read.

Bad changes are refused here, by the rules of the spec, and never reach the run. The run's process
wrote the tunables to a file, so most checks need no spec class, whose import takes seconds; only
tunables with rules across fields need one.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kdlab.changes import change
from kdlab.changes.change import CONTROL, Change, Scale
from kdlab.changes.queue import ChangeQueue
from kdlab.changes.tunable import Tunable
from kdlab.codec import from_builtins
from kdlab.config.folders import nearest
from kdlab.config.home import find_as
from kdlab.config.seal import damage
from kdlab.errors import BadInput, Fault, SpecError
from kdlab.events.log import select, training_now
from kdlab.events.teachers import PoolReady
from kdlab.experiment.folder import UNDER_WAY, RunFolder
from kdlab.train import kept

_CHANGE = "the change"
_GROUP = "train/aggregation/all_reduce"
_WITH_TEACHERS = ("cluster/local_pool", "cluster/deployed_pool")
_OF_TEACHERS = (change.AddTeacher, change.DrainTeacher, change.KillTeacher)


@dataclass(frozen=True, slots=True)
class _Group:
    type: str
    ranks: int = 1
    least: int = 1


def send(run: RunFolder, kind: type[Change], **data: Any) -> None:
    """Append a change of this kind, with these fields, for the member in training.

    Raises:
        BadInput: the run has ended or cannot do that, or a name is unknown.
        SpecError: the spec would not allow a value.
    """
    member = _member(run, UNDER_WAY)
    # The raw spec: only the run's process knows components of notebook cells.
    spec = run.resolved()
    if kind in _OF_TEACHERS:
        _check_teacher(run, (spec.get("teacher_pool") or {}).get("type"))
    if not data.get("name", "none"):
        raise BadInput(f"{kind.KIND} needs the name of a teacher, such as teacher-0.")
    if kind is change.SetValues:
        check_values(run, data["set"])
    change.append(run.path, kind(time=time.time(), member=member, **data))


def _member(run: RunFolder, states: Collection[str]) -> str:
    """Return the member in training, or that was when the run entered one of `states`."""
    state = run.status().state
    if state not in states:
        raise BadInput(f"Run {run.run_id} is {state}; only a running one can be changed.")
    run.check_format()
    member = training_now(run.events)
    if member is None:
        raise BadInput(
            f"Run {run.run_id} does not train its student at the moment: data, teacher or the "
            "next member are being prepared. Try again when it does."
        )
    return member


def go_back(run: RunFolder, to: int | None = None) -> int:
    """See `Run.back`."""
    member = _member(run, (*UNDER_WAY, "stopped", "failed", "lost"))
    place = kept.place(run.member(member))
    way, steps = (
        kept.RevertPoint.read(place),
        [kept.step_of(path) for path in kept.steps(place)],
    )
    step = way.good if to is None else max([n for n in steps if n <= to], default=0)
    if step not in steps:
        which = "from before a change of settings" if to is None else f"up to step {to}"
        none = "none (of several local models each has its own, by its rounds)"
        raise BadInput(
            f"Run {run.run_id} keeps no checkpoint {which} to go back to. Those of this "
            f"training are of steps: {', '.join(map(str, steps)) or none}."
        )
    if why := damage(place / f"step_{step:09d}", hashes=True):
        raise BadInput(
            f"Run {run.run_id} does not go back: the checkpoint of step {step} is damaged ({why})."
        )
    then = way.before if step <= way.good else {}
    others = {name: value for name, value in then.items() if value != way.values[name]}
    order = change.Back(time=time.time(), member=member, step=step, set=others)
    change.append(run.path, order)
    return step


def _check_teacher(run: RunFolder, pool: str | None) -> None:
    up = any(True for _ in select(run.events, PoolReady))
    if pool not in _WITH_TEACHERS or not up:
        raise BadInput(
            f"Run {run.run_id} has no teachers of its own; only those of a local or deployed "
            "pool are started and ended from here. Others join with kdlab teacher."
        )


def scale(run: RunFolder, ranks: int) -> None:
    """Resize a group at its next step, or at the first step of a resume.

    Raises:
        BadInput: the run has no group, or cannot have that many ranks.
        MessageError: the run's spec is damaged.
    """
    # Checked: another user may have written it.
    group = from_builtins(_Group, run.resolved().get("aggregation"))
    if group.type != _GROUP:
        raise BadInput(
            f"Run {run.run_id} trains one student in one process (aggregation "
            f"{group.type}); only {_GROUP} has ranks."
        )
    most = 2 * group.ranks  # a batch holds two samples for each rank of the spec
    if not group.least <= ranks <= most:
        raise BadInput(
            f"{ranks} ranks were asked for; this run can have {group.least} to {most} "
            f"(aggregation.least, and twice aggregation.ranks={group.ranks})."
        )
    change.append(run.path, Scale(time=time.time(), member="", ranks=ranks))


def tunables(run: RunFolder, *, at_start: bool = False) -> list[Tunable]:
    """Return the tunables with values of now or `at_start`; the first member's if none trains.

    Raises:
        MessageError: the run's file of tunables is damaged, or of another version of kdlab.
    """
    by_member = find_as(dict[str, list[Tunable]], run.tunables, "The run itself goes on.")
    if by_member is None:  # not begun, or from an earlier kdlab
        return []
    member = training_now(run.events) or ""
    begin = by_member.get(member, next(iter(by_member.values()), []))
    changed = {} if at_start else ChangeQueue(run.path / CONTROL, member).poll().values
    return [replace(one, value=changed.get(one.name, one.value)) for one in begin]


def check_values(run: RunFolder, values: Mapping[str, object]) -> None:
    """Refuse values that the spec would not allow.

    Raises:
        BadInput: a name is no tunable, or a value is no number.
        SpecError: a value is out of range, or conflicts with another.
    """
    settable = {item.name: item for item in tunables(run)}
    after = {name: item.value for name, item in settable.items()}
    for name, value in values.items():
        if name not in settable:
            raise BadInput(
                f"{name} cannot be set during a run.{nearest(name, sorted(settable))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"{name} is {value!r}; it must be a number.")
        if fault := settable[name].range.fault(value):
            raise SpecError([Fault(name, fault)], about=_CHANGE)
        after[name] = value
    for name, item in settable.items():
        if item.below and after[name] >= after[item.below]:
            words = f"is {after[name]:g} and {item.below} {after[item.below]:g}; it must be less"
            raise SpecError([Fault(name, words)], about=_CHANGE)
    if not all(settable[name].free for name in values):
        _ask_the_spec(run, after)


def _ask_the_spec(run: RunFolder, values: Mapping[str, float]) -> None:
    # Imported late: they import torch.
    from kdlab.config.check import construct
    from kdlab.config.load import from_dict
    from kdlab.experiment.spec import ExperimentSpec, spec_of

    tree = spec_of(run).to_dict()
    for name, value in values.items():
        part, _, field = name.partition(".")
        if field:  # all but the learning rate's factor
            tree[part] = tree[part] | {field: value}
    construct(ExperimentSpec, from_dict(tree, _CHANGE))
