"""What was found to be the fastest engine here, for the next teacher that comes up.

One file for each network, shape, machine and set of libraries, in `home()`/engines; whichever of
these is another, another file is looked for.
"""

import json
import logging
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from kdlab.codec import to_builtins
from kdlab.config.home import home, recall_as, write_json
from kdlab.config.kept import key_of
from kdlab.models.engines.choose import Trial, fastest

_LIBRARIES = ("kdlab", "torch", "onnxruntime", "openvino", "nncf")


def recall(network: Mapping[str, object]) -> str | None:
    """Label of the engine that was chosen for it on this machine; None if none was.

    Args:
        network: what tells it from others: hashes of weights, shape, threads, device.
    """
    trials = recall_as(list[Trial], _path(network), "Engines are measured anew.")
    useful = [trial for trial in trials or () if not trial.refused]
    return fastest(useful).label if useful else None


def remember(network: Mapping[str, object], trials: tuple[Trial, ...]) -> None:
    """All that were tried; where it cannot be written the next teacher measures again."""
    try:
        write_json(_path(network), [to_builtins(trial) for trial in trials])
    except OSError as error:
        logging.getLogger("kdlab").warning("engines are not remembered: %s", error)


def forget(network: Mapping[str, object]) -> None:
    """What was remembered does not hold any more; the next teacher measures again."""
    _path(network).unlink(missing_ok=True)


def _path(network: Mapping[str, object]) -> Path:
    about = {"network": network, "machine": _machine(), "libraries": _versions()}
    return home() / "engines" / f"{key_of(json.dumps(about, sort_keys=True))}.json"


def _machine() -> str:
    """Processor and, where there is one, GPU."""
    words = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        words += [line for line in lines if line.startswith("model name")][:1]
    if torch.cuda.is_available():
        words.append(torch.cuda.get_device_name())
    return " ".join(words)


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed
    return found
