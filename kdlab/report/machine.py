"""Hardware, package versions and commit of a measurement."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    import torch  # takes a second, which listings save

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
    }


def versions() -> dict[str, str]:
    names = [
        "kdlab",
        "torch",
        "torchvision",
        "timm",
        "distributed",
        "mlflow",
        "numpy",
        "safetensors",
    ]
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(name: str) -> str:
    """Return a package's version; a missing package must not lose an hour's measurement."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def git_commit(folder: Path | None = None, *, marks: bool = False) -> str | None:
    """Return the commit of a folder (default: the current one); None outside a checkout.

    Also None without git. With `marks` it ends in -dirty where files differ from it.
    """
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    command = ["git", *(describe if marks else ["rev-parse", "HEAD"])]
    try:
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=10, cwd=folder
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None
