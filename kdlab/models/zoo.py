"""Whether timm or torchvision have a model, answered without importing them (a second each)."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kdlab.config.folders import nearest
from kdlab.errors import Fault

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


@cache
def _builders(package: str) -> frozenset[str]:
    """Names of the models in its sources; what somebody else registered is not there."""
    found = find_spec(package)
    if found is None or found.origin is None:
        return frozenset()
    files = (Path(found.origin).parent / "models").glob("*.py")
    return frozenset(
        name
        for file in files
        for name in _BUILDER.findall(file.read_text(encoding="utf-8"))
    )
