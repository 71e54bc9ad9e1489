"""Print sizes and layers of the code into `docs/architecture.md`.

`make house` does so, after it has lowered `budgets.toml` to what there is. A size in the page
is that of the room's budget, so a small change of the code does not make the page wrong.
"""

import re
import sys

from rules import budgets, house

PAGE = house.ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- printed: (\w+) -->\n).*?(<!-- end of printed -->)", re.DOTALL)


def page(text, table):
    """The page with its blocks printed again."""
    makers = {"rooms": rooms, "long": long}
    return BLOCK.sub(lambda block: f"{block[1]}{makers[block[2]](table)}{block[3]}", text)


def rooms(table):
    """Layers from the top down, each with its rooms and the folders in them."""
    most = {name.removesuffix(".py"): row.most for name, row in table.rooms.items()}
    beside = house.BESIDE.name
    lines = [
        *_room(f"{beside + '/':<27}", beside, most),
        f"kdlab/ {'':20}{table.at_most['lines'].most:>7,}  lines of Python at most",
    ]
    for number, layer in enumerate(house.layers(), 1):
        for name in layer:
            mark = f"{number:>3}" if name == layer[0] else "   "
            shown = f"{name}/" if (house.KDLAB / name).is_dir() else f"{name}.py"
            lines += _room(f"{mark} {shown:<23}", name, most)
    return "\n".join(["```text", *lines, "```", ""])


def _room(head, name, most):
    """The line of a room, and one for each folder in it."""
    yield f"{head}{most[name]:>7,}  {house.about(name)}"
    for folder in house.folders(name):
        yield f"      {folder + '/':<28}  {house.about(f'{name}/{folder}')}"


def long(table):
    """Files and functions that are longer than the rest may be."""
    rows = [
        f"| `{name.removeprefix('kdlab/').replace('.py::', '.py`, `')}` | {most} |"
        for names in (table.long_files, table.long_functions)
        for name, most in sorted(names.items(), key=lambda item: -item[1])
    ]
    return "\n".join(["| | lines |", "| --- | --- |", *rows, ""])


def main():
    """Lower the budgets, print the page; say what is over its budget."""
    now = budgets.counted()
    table = budgets.lowered(budgets.read(budgets.FILE.read_text()), now)
    budgets.FILE.write_text(budgets.written(table))
    PAGE.write_text(page(PAGE.read_text(), table))
    over = [
        f"{name}: {row.most} lines, {row.most - most} more than its budget"
        for name, row in now.rows().items()
        if row.most > (most := table.rows().get(name, budgets.Row(0)).most)
    ]
    new = {name: [*entries] for name, entries in now.lists().items()}
    for name, entries in table.lists().items():
        over += [f"{entry}: new in {name}" for entry in new[name] if entry not in entries]
    sys.exit("\n".join(over) or None)


if __name__ == "__main__":
    main()
