"""Files of tensors from anywhere: read without running anything that they hold."""

import pickle
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from kdlab.errors import WeightsError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by name: safetensors, or PyTorch's without anything that could run code.

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
    """True where a safetensors file has its header and the length that it says."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def _check_unpacked(path: Path) -> None:
    """PyTorch stores what it writes as it is; a packed file may be of any size in memory."""
    if is_zipfile(path):
        with ZipFile(path) as archive:
            whole, size = sum(m.file_size for m in archive.infolist()), path.stat().st_size
        if whole > size:
            raise ValueError(f"its {size:,} bytes unpack to {whole:,}; save it anew")
