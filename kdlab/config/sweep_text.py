"""A sweep as it is written: found by name, its keys known; nothing of Optuna or torch imported."""

from kdlab.config import folders, yaml_text
from kdlab.config import load as loader
from kdlab.config.check import unknown_keys
from kdlab.errors import NotFoundError, SpecError


def read_sweep(name: str, overrides: loader.Overrides = ()) -> loader.Composed:
    """The tree of a sweep. Its dotted keys are names here: they are not resolved.

    Args:
        name: of one under `configs/sweeps/`, or a path to a YAML file.
        overrides: "trials=3", or {"trials": 3}; later ones win.

    Raises:
        NotFoundError: no such sweep; names the nearest.
        SpecError: it is no YAML, or has a key that no sweep has.
    """
    path = folders.yaml_file(name)
    if path is None:
        known = folders.names("configs")
        short = name.removeprefix("configs/").removeprefix("sweeps/").removesuffix(".yaml")
        clean = f"sweeps/{short}"
        if clean not in known:
            sweeps = [n.removeprefix("sweeps/") for n in known if n.startswith("sweeps/")]
            near = folders.nearest(short, sweeps)
            words = f"There is no sweep named {short!r} under configs/sweeps/.{near}"
            wanted = "sweep, which is a file that ends in .yaml"
            raise NotFoundError(folders.wrong_path(name, wanted, near) or words)
        path, name = known[clean], clean
    document = yaml_text.read(path, folders.display(path))
    if document.faults or not isinstance(document.data, dict):
        raise SpecError(document.faults, about=name)
    composed = loader.from_dict(document.data, name, overrides)
    if not composed.faults:
        early = unknown_keys(composed, "kdlab.tuning.spec", "SweepSpec")
        if early:
            raise SpecError(early, about=composed.name)
    return composed
