"""What a measurement was made on: hardware, versions, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    import torch  # takes a second, and listing needs none of it

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
    """A figure that took an hour is not lost for a package that it did without."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def git_commit(folder: Path | None = None, *, marks: bool = False) -> str | None:
    """Commit of a folder, else of the current one; None where it is no checkout or git is missing.

    With `marks` it ends in -dirty where files differ from it.
    """
    described = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    words = ["git", *(described if marks else ["rev-parse", "HEAD"])]
    try:
        return subprocess.check_output(
            words, stderr=subprocess.DEVNULL, text=True, timeout=10, cwd=folder
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None
