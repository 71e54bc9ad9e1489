"""The recipes of the field that come as configs; read without what they would run."""

from typing import Any

import yaml

from kdlab.config import folders
from kdlab.errors import NotFoundError
from kdlab.report.table import text_table_left

_SHELF = "recipes/"


def recipes(asked: str | None = None) -> list[dict[str, Any]]:
    """Name, line, and what is expected, of each config below `configs/recipes`, or of one.

    Raises:
        NotFoundError: there is none that is asked for.
    """
    found = []
    shelf = {n: p for n, p in folders.names("configs").items() if n.startswith(_SHELF)}
    if asked is not None:
        name = _SHELF + asked.removeprefix(_SHELF)
        if name not in shelf:
            raise NotFoundError(
                f"There is no recipe {asked!r}.{folders.nearest(name, shelf)}"
            )
        shelf = {name: shelf[name]}
    for name, path in sorted(shelf.items()):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        expects = tree.get("expects") or {}
        found.append({"name": name, "about": tree.get("about", ""), **expects})
    return found


def recipes_table(found: list[dict[str, Any]]) -> str:
    """A line each, and how they are run; of one alone where it differs from its source."""
    if len(found) == 1:
        (one,) = found
        lines = [[key, why] for key, why in one.get("differs", {}).items()]
        table = text_table_left(["differs in", "why"], lines)
        return f"{one['name']}: {one['about']}\nSource: {one['source']}.\n\n{table}"
    rows = [
        [one["name"], f"{one['top1']:g}" if "top1" in one else "", one.get("cost", "")]
        for one in found
    ]
    table = text_table_left(["recipe", "top-1 %", "cost"], rows)
    # One whose accuracy is known, to compare with.
    shown = next((one for one in found if "top1" in one), found[0])
    return (
        f"{table}\n\nRun one: kdlab run {shown['name']}. `kdlab recipes NAME` says where it "
        "differs from its source, and why; loss=losses/cifar100/dkd takes another loss."
    )
