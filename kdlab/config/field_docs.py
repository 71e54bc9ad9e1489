"""What the docstrings of specs say of their fields, for help, forms and pages."""

import re

from kdlab.config.spec import Spec

_DOCUMENTED = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*)$")


def field_docs(cls: type[Spec], *, inherited: bool = True) -> dict[str, str]:
    """What the docstrings of a class, and of its bases, say of each field."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__) if inherited else (cls,):
        if one is not object:
            found |= _documented(one.__doc__ or "")
    return found


def _documented(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        start = _DOCUMENTED.match(line)
        if start:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2].strip())
        elif names and line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found
