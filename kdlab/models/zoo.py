"""Looks models of timm and torchvision up without importing them (a second each)."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kdlab.config import registry
from kdlab.config.folders import names, nearest
from kdlab.errors import BadInput, Fault

_BUILDER = re.compile(r"^@register_model\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def unknown_model(
    package: str, name: str, known: Callable[[], list[str]]
) -> Iterator[Fault]:
    """Yield a fault if timm or torchvision have no model of this name, without its tag of weights.

    `known` returns all names; it imports the package, and is only called if no source defines it.
    """
    if name in _builders(package):
        return
    names = known()
    if name not in names:
        yield Fault("type", f"{package} has no model {name!r}.{nearest(name, names)}")


def require_model(name: str) -> None:
    """Raise BadInput for a name that is neither a network nor a card."""
    package, _, variant = name.rpartition("/")
    models = _builders(package or "timm")
    known = [*names("registry"), *registry.known_names()]
    if variant.split(".")[0] in models or name in known or registry.in_rooms(name):
        return
    if models:
        near = nearest(variant, sorted(models))
        raise BadInput(f"{package or 'timm'} has no model {variant!r}.{near}")
    if package not in ("timm", "torchvision"):  # which are not installed here
        raise BadInput(f"There is no network named {name!r}.{nearest(name, known)}")


@cache
def _builders(package: str) -> frozenset[str]:
    """Names of the models in a package's sources, without those that others registered."""
    module = find_spec(package) if package in ("timm", "torchvision") else None
    if module is None or module.origin is None:
        return frozenset()
    files = (Path(module.origin).parent / "models").glob("*.py")
    return frozenset(
        name
        for file in files
        for name in _BUILDER.findall(file.read_text(encoding="utf-8"))
    )
