"""Orders to a run that goes on: lines that its processes read (kdlab/changes/change.py).

Bad orders are found here, by the same rules as a spec, and never reach the run.
"""

from collections.abc import Mapping

from kdlab.changes import change as orders
from kdlab.errors import BadInput
from kdlab.events.log import select, training_now
from kdlab.events.teachers import PoolReady
from kdlab.experiment.folder import UNDER_WAY, RunFolder
from kdlab.run.handle.knobs import check_values

_WITH_TEACHERS = ("cluster/local_pool", "cluster/deployed_pool")
_OF_TEACHERS = ("add_teacher", "drain_teacher", "kill_teacher")


def send(
    run: RunFolder,
    event: str,
    values: Mapping[str, float] | None = None,
    name: str | None = None,
) -> None:
    """Append an order (a name of orders.Order.KINDS) for the member that trains now.

    Raises:
        BadInput: the run has ended, or cannot do that; a name that is unknown.
        SpecError: a value that the spec would not allow.
    """
    state = run.status().state
    if state not in UNDER_WAY:
        raise BadInput(f"Run {run.run_id} is {state}; only a running one takes orders.")
    # As it was written: a spec with components of a notebook cell is known there only.
    run.check_format()
    told = run.resolved()
    if event in _OF_TEACHERS:
        pool = (told.get("teacher_pool") or {}).get("type")
        _check_teacher(run, pool, event, name)
    if values is not None:
        check_values(run, values)
    member = training_now(run.events)
    if member is None:
        raise BadInput(
            f"Run {run.run_id} does not train its student at the moment: data, teacher or the "
            "next member are being prepared. Try again when it does."
        )
    said = {"set": values, "name": name}
    data = {key: value for key, value in said.items() if value is not None}
    orders.append(run.path, orders.order(event, member, data))


def _check_teacher(run: RunFolder, pool: str | None, event: str, name: str | None) -> None:
    up = any(True for _ in select(run.events, PoolReady))
    if pool not in _WITH_TEACHERS or not up:
        raise BadInput(
            f"Run {run.run_id} has no teachers of its own; only those of a local or deployed "
            "pool are started and ended from here. Others join with kdlab teacher."
        )
    if event != "add_teacher" and not name:
        raise BadInput(f"{event} needs the name of a teacher, such as teacher-0.")
