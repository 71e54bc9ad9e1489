"""Keeps the choice of an engine for the next teacher.

There is one file for each network, shape, machine and set of libraries, in `home()`/engines.
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
from kdlab.models.engines.choose import Trial, select_fastest

_LIBRARIES = ("kdlab", "torch", "onnxruntime", "openvino", "nncf")


def recall(network: Mapping[str, object]) -> str | None:
    """Return the label of the engine chosen for a network on this machine, or None.

    Args:
        network: its identity: hashes of weights, shape, threads, device.
    """
    trials = recall_as(list[Trial], _path(network), "Engines are measured anew.")
    useful = [trial for trial in trials or () if not trial.refused]
    return select_fastest(useful).label if useful else None


def remember(network: Mapping[str, object], trials: tuple[Trial, ...]) -> None:
    """Keep all trials; if the file cannot be written, the next teacher measures again."""
    try:
        write_json(_path(network), [to_builtins(trial) for trial in trials])
    except OSError as error:
        logging.getLogger("kdlab").warning("The choice of an engine is not kept: %s", error)


def forget(network: Mapping[str, object]) -> None:
    """Delete a kept choice, so that the next teacher measures again."""
    _path(network).unlink(missing_ok=True)


def _path(network: Mapping[str, object]) -> Path:
    about = {"network": network, "machine": _machine(), "libraries": _versions()}
    return home() / "engines" / f"{key_of(json.dumps(about, sort_keys=True))}.json"


def _machine() -> str:
    """Return the names of the processor and of the GPU."""
    words = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        words += [line for line in lines if line.startswith("model name")][:1]
    if torch.cuda.is_available():
        words.append(torch.cuda.get_device_name())
    return " ".join(words)


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed
    return versions
