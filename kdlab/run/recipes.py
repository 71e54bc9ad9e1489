"""The recipes of the field that come as configs; read without what they would run."""

from typing import Any

import yaml

from kdlab.config import folders
from kdlab.report.table import text_table_left

_SHELF = "recipes/"


def recipes() -> list[dict[str, Any]]:
    """Name, line, and what is expected, of each config below `configs/recipes`."""
    found = []
    for name, path in sorted(folders.names("configs").items()):
        if not name.startswith(_SHELF):
            continue
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        expects = tree.get("expects") or {}
        found.append({"name": name, "about": tree.get("about", ""), **expects})
    return found


def recipes_table(found: list[dict[str, Any]]) -> str:
    """A line each, and how they are run."""
    rows = [
        [one["name"], f"{one['top1']:g}" if "top1" in one else "", one.get("cost", "")]
        for one in found
    ]
    table = text_table_left(["recipe", "top-1 %", "cost"], rows)
    # One whose accuracy is known, to compare with.
    shown = next((one for one in found if "top1" in one), found[0])
    return (
        f"{table}\n\nRun one: kdlab run {shown['name']}. `kdlab show NAME` says where its "
        "figures are from; loss=losses/cifar100/dkd takes another loss."
    )
