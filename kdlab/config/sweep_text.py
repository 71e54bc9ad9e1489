"""Read a sweep's YAML by name and check its keys, without importing Optuna or torch."""

from kdlab.config import folders, yaml_text
from kdlab.config import load as loader
from kdlab.config.check import unknown_keys
from kdlab.errors import NotFoundError, SpecError


def read_sweep(name: str, overrides: loader.Overrides = ()) -> loader.Composed:
    """Read the tree of a sweep. Its dotted keys are names and stay unresolved.

    Args:
        name: name of a sweep under `configs/sweeps/`, or path to a YAML file.
        overrides: "trials=3", or {"trials": 3}; later ones win.

    Raises:
        NotFoundError: no such sweep; names the nearest.
        SpecError: it is not YAML, or has an unknown key.
    """
    path = folders.yaml_file(name)
    if path is None:
        configs = folders.names("configs")
        short = name.removeprefix("configs/").removeprefix("sweeps/").removesuffix(".yaml")
        full_name = f"sweeps/{short}"
        if full_name not in configs:
            sweeps = [n.removeprefix("sweeps/") for n in configs if n.startswith("sweeps/")]
            near = folders.nearest(short, sweeps)
            words = f"There is no sweep named {short!r} under configs/sweeps/.{near}"
            wanted = "sweep, which is a file that ends in .yaml"
            raise NotFoundError(folders.wrong_path(name, wanted, near) or words)
        path, name = configs[full_name], full_name
    document = yaml_text.read(path, folders.display(path))
    if document.faults:
        raise SpecError(document.faults, about=name)
    composed = loader.from_dict(document.data, name, overrides)
    if not composed.faults:
        faults = unknown_keys(composed, "kdlab.tuning.spec", "SweepSpec")
        if faults:
            raise SpecError(faults, about=composed.name)
    return composed
