"""How many ranks a student is to have, where somebody asked while it trained."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from kdlab.codec import typed
from kdlab.config.home import find_as, write_json
from kdlab.errors import BadInput
from kdlab.experiment.folder import RunFolder
from kdlab.train.aggregation.all_reduce import AllReduce

_WANTED = "ranks.json"
_Ranks = Annotated[int, Meta(ge=1, le=4096)]


@dataclass(frozen=True, slots=True)
class _Group:
    type: str
    ranks: int = 1
    least: int = 1


def wanted_ranks(run: RunFolder) -> int | None:
    """What somebody asked for while the run was going; None if nobody did."""
    found = find_as(dict[str, _Ranks], run.path / _WANTED, "Delete it, or ask again.")
    return found.get("ranks") if found else None


def ask_for_ranks(run: RunFolder, spec: dict[str, Any], ranks: int) -> None:
    """Have a group grow or shrink at its next step.

    Raises:
        BadInput: the run has no group, or it cannot have so many ranks.
        MessageError: its spec is damaged.
    """
    group = typed(_Group, spec.get("aggregation"))  # as somebody else may have written it
    if group.type != AllReduce.component:
        raise BadInput(
            f"Run {run.run_id} trains one student in one process (aggregation "
            f"{group.type}); only train/aggregation/all_reduce has ranks."
        )
    most = 2 * group.ranks  # a batch holds two samples for each rank of the spec
    if not group.least <= ranks <= most:
        raise BadInput(
            f"{ranks} ranks are asked for; this run can have {group.least} to {most} "
            f"(aggregation.least, and twice aggregation.ranks={group.ranks})."
        )
    write_json(run.path / _WANTED, {"ranks": ranks})
