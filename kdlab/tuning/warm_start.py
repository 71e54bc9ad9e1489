"""The best settings of an earlier sweep, to be tried first in another one."""

from kdlab.errors import BadInput
from kdlab.tuning.best import ranked
from kdlab.tuning.folder import find, read_study
from kdlab.tuning.space import Space, Values
from kdlab.tuning.spec import SweepSpec
from kdlab.tuning.trial_notes import values_of


def earlier(spec: SweepSpec, space: Space) -> list[Values]:
    """The best first; keys that the earlier one did not have are as in the experiment.

    Raises:
        NotFoundError: there is no such study.
        BadInput: none of its best lies in this space.
    """
    warm = spec.warm_start
    if warm is None:
        return []
    folder = find(warm.study)
    known = folder.sweep()
    found, why = list[Values](), "it has no trial that ended well"
    for trial in ranked(read_study(folder, known.storage), known)[: warm.best]:
        values = space.completed(values_of(trial))
        faults = list(space.faults_of(values))
        if faults:
            why = f"trial {trial.number}: {faults[0]}"
        else:
            found.append(values)
    if not found:
        raise BadInput(f"Nothing of the sweep {warm.study} can be tried here: {why}.")
    return found
