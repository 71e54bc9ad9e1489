"""Whether timm or torchvision have a model, answered without importing them (a second each)."""

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
    """The fault of a name, without its tag of weights, that timm or torchvision do not have.

    `known` has all names; it imports the package, and is only asked where no source has it.
    """
    if name in _builders(package):
        return
    names = known()
    if name not in names:
        yield Fault("type", f"{package} has no model {name!r}.{nearest(name, names)}")


def require_model(name: str) -> None:
    """Refuse, as BadInput, the name of a network, or of a card, that nobody has."""
    package, _, variant = name.rpartition("/")
    models = _builders(package or "timm")
    own = [*names("registry"), *registry.known_names()]
    if variant.split(".")[0] in models or name in own or registry.in_rooms(name):
        return
    if models:
        near = nearest(variant, sorted(models))
        raise BadInput(f"{package or 'timm'} has no model {variant!r}.{near}")
    if package not in ("timm", "torchvision"):  # which are not installed here
        raise BadInput(f"There is no network named {name!r}.{nearest(name, own)}")


@cache
def _builders(package: str) -> frozenset[str]:
    """Names of the models in its sources; what somebody else registered is not there."""
    found = find_spec(package) if package in ("timm", "torchvision") else None
    if found is None or found.origin is None:
        return frozenset()
    files = (Path(found.origin).parent / "models").glob("*.py")
    return frozenset(
        name
        for file in files
        for name in _BUILDER.findall(file.read_text(encoding="utf-8"))
    )
