"""Reads files of tensors without running code from them."""

import pickle
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from kdlab.errors import WeightsError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from safetensors, or from a file of PyTorch's with tensors alone.

    Raises:
        WeightsError: unreadable, or more than plain tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        _check_unpacked(path)  # weights_only: a pickle from outside must not run code
        state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} holds more than plain tensors and is not read: a pickle from outside "
            "could run code. Save its state_dict as safetensors."
        ) from error
    except (SafetensorError, RuntimeError, ValueError, EOFError, BadZipFile) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error


def is_complete(path: Path) -> bool:
    """Return whether a safetensors file is present, with the length in its header."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def _check_unpacked(path: Path) -> None:
    """Refuse compressed archives, which PyTorch never writes: they may unpack to any size."""
    if is_zipfile(path):
        with ZipFile(path) as archive:
            unpacked, size = (
                sum(m.file_size for m in archive.infolist()),
                path.stat().st_size,
            )
        if unpacked > size:
            raise ValueError(f"its {size:,} bytes unpack to {unpacked:,}; save it again")
