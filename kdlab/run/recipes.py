"""Published recipes that come as configs, read without importing their components."""

from typing import Any

from kdlab.config import folders, yaml_text
from kdlab.errors import NotFoundError, SpecError
from kdlab.report.table import text_table_left

_SHELF = "recipes/"
_KINDS = {"source": str, "top1": int | float, "cost": str, "differs": dict}  # of `expects`


def recipes(asked: str | None = None) -> list[dict[str, Any]]:
    """Return name, line and expected results of all recipes, or of the one `asked` for.

    Raises:
        NotFoundError: no such recipe.
        SpecError: its file cannot be read.
    """
    rows = []
    shelf = {n: p for n, p in folders.names("configs").items() if n.startswith(_SHELF)}
    if asked is not None:
        name = _SHELF + asked.removeprefix(_SHELF)
        if name not in shelf:
            raise NotFoundError(
                f"There is no recipe {asked!r}.{folders.nearest(name, shelf)}"
            )
        shelf = {name: shelf[name]}
    for name, path in sorted(shelf.items()):
        document = yaml_text.read(path, folders.display(path))
        if document.faults and asked is not None:
            raise SpecError(document.faults, about=name)
        expects = document.data.get("expects")
        facts = expects.items() if isinstance(expects, dict) else ()
        fitting = {k: v for k, v in facts if isinstance(v, _KINDS.get(k, object))}
        if not document.faults:  # another's fault hides no recipe
            rows.append({"name": name, "about": document.data.get("about", ""), **fitting})
    return rows


def recipes_table(listed: list[dict[str, Any]]) -> str:
    """Format recipes, a line each; for a single one its differences from its source."""
    if len(listed) == 1:
        (entry,) = listed
        lines = [[key, str(why)] for key, why in entry.get("differs", {}).items()]
        table = text_table_left(["differs in", "why"], lines)
        return f"{entry['name']}: {entry['about']}\nSource: {entry.get('source', '-')}.\n\n{table}"
    rows = [
        [one["name"], f"{one['top1']:g}" if "top1" in one else "", one.get("cost", "")]
        for one in listed
    ]
    table = text_table_left(["recipe", "top-1 %", "cost"], rows)
    # A recipe with a published accuracy, to compare with.
    shown = next((one for one in listed if "top1" in one), listed[0])
    return (
        f"{table}\n\nRun one: kdlab run {shown['name']}. `kdlab recipes NAME` shows where it "
        "differs from its source, and why; loss=losses/cifar100/dkd takes another loss."
    )
