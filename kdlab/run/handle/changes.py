"""Changes of a run that goes on: what can be tuned, and lines that its processes read.

Bad ones are found here, by the same rules as a spec, and never reach the run. What can be tuned
its process wrote down, so that is checked without the seconds that the classes of a spec take to
import; they are asked where a class has rules of its own.
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
    """Append a change, with these fields of its kind, for the member that trains now.

    Raises:
        BadInput: the run has ended, or cannot do that; a name that is unknown.
        SpecError: a value that the spec would not allow.
    """
    member = _member(run, UNDER_WAY)
    # As it was written: a spec with components of a notebook cell is known there only.
    told = run.resolved()
    if kind in _OF_TEACHERS:
        _check_teacher(run, (told.get("teacher_pool") or {}).get("type"))
    if not data.get("name", "none"):
        raise BadInput(f"{kind.KIND} needs the name of a teacher, such as teacher-0.")
    if kind is change.SetValues:
        check_values(run, data["set"])
    change.append(run.path, kind(time=time.time(), member=member, **data))


def _member(run: RunFolder, states: Collection[str]) -> str:
    """The one that trains, or did when the run came into such a state."""
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
    way, there = (
        kept.RevertPoint.of(place),
        [kept.step_of(one) for one in kept.steps(place)],
    )
    found = way.good if to is None else max([n for n in there if n <= to], default=0)
    if found not in there:
        which = "from before a change of settings" if to is None else f"up to step {to}"
        own = "none (of several local models each has its own, by its rounds)"
        raise BadInput(
            f"Run {run.run_id} keeps no checkpoint {which} to go back to. Those of this "
            f"training are of steps: {', '.join(map(str, there)) or own}."
        )
    if why := damage(place / f"step_{found:09d}", hashes=True):
        raise BadInput(
            f"Run {run.run_id} goes on: its checkpoint of step {found} is damaged ({why})."
        )
    then = way.before if found <= way.good else {}
    others = {name: value for name, value in then.items() if value != way.values[name]}
    order = change.Back(time=time.time(), member=member, step=found, set=others)
    change.append(run.path, order)
    return found


def _check_teacher(run: RunFolder, pool: str | None) -> None:
    up = any(True for _ in select(run.events, PoolReady))
    if pool not in _WITH_TEACHERS or not up:
        raise BadInput(
            f"Run {run.run_id} has no teachers of its own; only those of a local or deployed "
            "pool are started and ended from here. Others join with kdlab teacher."
        )


def scale(run: RunFolder, ranks: int) -> None:
    """Have a group grow or shrink at its next step, also at that of a resume.

    Raises:
        BadInput: the run has no group, or it cannot have so many ranks.
        MessageError: its spec is damaged.
    """
    # As somebody else may have written it.
    group = from_builtins(_Group, run.resolved().get("aggregation"))
    if group.type != _GROUP:
        raise BadInput(
            f"Run {run.run_id} trains one student in one process (aggregation "
            f"{group.type}); only {_GROUP} has ranks."
        )
    most = 2 * group.ranks  # a batch holds two samples for each rank of the spec
    if not group.least <= ranks <= most:
        raise BadInput(
            f"{ranks} ranks are asked for; this run can have {group.least} to {most} "
            f"(aggregation.least, and twice aggregation.ranks={group.ranks})."
        )
    change.append(run.path, Scale(time=time.time(), member="", ranks=ranks))


def tunables(run: RunFolder, *, at_start: bool = False) -> list[Tunable]:
    """What can be set, as it is now or was `at_start`; of the first member while none trains.

    Raises:
        MessageError: what the run wrote down is damaged, or of another version of kdlab.
    """
    written = find_as(dict[str, list[Tunable]], run.tunables, "The run itself goes on.")
    if written is None:  # it has not begun, or is of an earlier kdlab
        return []
    member = training_now(run.events) or ""
    begin = written.get(member, next(iter(written.values()), []))
    found = {} if at_start else ChangeQueue(run.path / CONTROL, member).look().values
    return [replace(one, value=found.get(one.name, one.value)) for one in begin]


def check_values(run: RunFolder, values: Mapping[str, object]) -> None:
    """Refuse what the spec would not allow.

    Raises:
        BadInput: it cannot be set while a run goes on, or is no number.
        SpecError: it is out of its range, or does not go with the others.
    """
    known = {one.name: one for one in tunables(run)}
    after = {name: one.value for name, one in known.items()}
    for name, value in values.items():
        if name not in known:
            raise BadInput(
                f"{name} cannot be set while a run goes on.{nearest(name, sorted(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"{name} is {value!r}; it must be a number.")
        if fault := known[name].range.fault(value):
            raise SpecError([Fault(name, fault)], about=_CHANGE)
        after[name] = value
    for name, one in known.items():
        if one.below and after[name] >= after[one.below]:
            words = (
                f"is {after[name]:g} and {one.below} {after[one.below]:g}; it must be less"
            )
            raise SpecError([Fault(name, words)], about=_CHANGE)
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
    construct(ExperimentSpec, from_dict(tree, _CHANGE))
