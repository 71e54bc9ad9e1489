"""What somebody wants of an experiment that is chosen for them; imports nothing heavy."""

import re
from dataclasses import dataclass
from pathlib import Path

from kdlab.config.folders import require_path
from kdlab.errors import BadInput
from kdlab.models.zoo import require_model

_NAME = re.compile(r"[A-Za-z0-9][\w\-]*")
MINUTES = 5.0  # of a first run, if nobody says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunOptions:
    """What somebody wants; None is left to us.

    data: path or URL of photos.
    student, teacher: names or blocks of models.
    weights: file of the teacher's, which is then not trained.
    minutes: that a first run may take on this machine.
    """

    data: str
    student: object = None
    teacher: object = None
    weights: str | None = None
    minutes: float = MINUTES

    def check(self) -> None:
        """Refuse, as BadInput, paths at which nothing is and networks that nobody has."""
        for place in (self.data, self.weights):
            if place is not None:
                require_path(place)
        for wish in (self.student, self.teacher):
            if isinstance(wish, str):
                require_model(wish)


def places(name: str, *, force: bool) -> tuple[Path, Path]:
    """Config and notebook of an experiment; BadInput: no name, or they are there already."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of an experiment: letters, digits, - and _.")
    config, notebook = Path("configs") / f"{name}.yaml", Path(f"{name}.ipynb")
    there = [str(path) for path in (config, notebook) if path.exists()]
    if there and not force:
        raise BadInput(f"{' and '.join(there)} is there already; --force writes over it.")
    return config, notebook
