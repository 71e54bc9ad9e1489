"""Options of `kdlab new` and `kdlab.distil`; imports nothing heavy."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from kdlab.config.folders import require_path, user_path
from kdlab.errors import BadInput
from kdlab.models.zoo import require_model

_NAME = re.compile(r"[A-Za-z0-9][\w\-]*")
MINUTES = 5.0  # of a first run, by default


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunOptions:
    """Options of a new experiment; None leaves the choice to kdlab.

    data: path or URL of photos.
    student, teacher: names or blocks of models.
    weights: file of the teacher's weights, which is then not trained.
    minutes: time that a first run may take on this machine.
    """

    data: str
    student: object = None
    teacher: object = None
    weights: str | None = None
    minutes: float = MINUTES

    def check(self) -> None:
        """Refuse missing paths and unknown networks, as BadInput."""
        for place in (self.data, self.weights):
            if place is not None:
                require_path(place)
        if os.path.isdir(os.path.expanduser(self.weights or "")):
            raise BadInput(f"{self.weights} is a folder; give the file of the weights.")
        for wish in (self.student, self.teacher):
            if isinstance(wish, str):
                require_model(wish)


def places(name: str, *, force: bool) -> tuple[Path, Path]:
    """Return paths of config and notebook; BadInput: a bad name, or the files exist already."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of an experiment: letters, digits, - and _.")
    config, notebook = user_path(f"configs/{name}.yaml"), user_path(f"{name}.ipynb")
    folder = config.parent
    for path in (folder, config, notebook):
        if path.exists() and path.is_dir() != (path is folder):
            raise BadInput(f"{path} is in the way. Rename it, or choose another name.")
    present = [str(path) for path in (config, notebook) if path.exists()]
    if present and not force:
        raise BadInput(f"Already there: {' and '.join(present)}. Add --force to overwrite.")
    return config, notebook
