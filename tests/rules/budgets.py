"""The limits of kdlab/ and benchmarks/ in `budgets.toml`, and how they are lowered.

`[at_most]` and `[rooms]` hold rows; `[lists]` names what breaks a rule today. A row is
`{most = 120, raised = [{by = 20, for = "why"}]}`. Its base, `most` without the raises (here
100), only falls.
"""

import tomllib
from dataclasses import dataclass

from rules import house, suite

FILE = house.ROOT / "tests" / "rules" / "budgets.toml"
MANY = ("run", "cluster", "experiment", "tracking", "tuning", "methods")
SPINE = (
    *MANY, "commands", "report", "events", "control", "supervision",
    "session", "cli", "codec",
)  # fmt: skip

HEAD = """\
# How much there may be in kdlab/ and, beside it, in benchmarks/. tests/rules/test_budgets.py holds
# the code to it.
#
# Numbers only fall and lists only shrink: `make house` lowers them to what there is. A row may
# rise with a line beside it that says for what and by how much, and then is as much higher:
#
#     "run" = {most = 6641, raised = [{by = 20, for = "a folder can be moved"}]}
#
# Better is to join what exists. A room that gets what another had is raised by it as well.
"""
ABOUT = {
    "at_most": "lines of all of kdlab/; loose mappings of benchmarks/ too",
    "rooms": "lines of Python in each, as `wc -l` counts them",
    "long_files": "above 400 lines",
    "long_functions": "above 60 lines, from `def` to the last one",
    "circles": "modules that import each other, `TYPE_CHECKING` counted",
    "named_twice": "classes and type aliases of one name",
    "untested": "modules of the spine and of methods that no unit test imports",
}


@dataclass(frozen=True)
class Row:
    most: int
    raised: tuple[tuple[int, str], ...] = ()  # by how much, for what

    @property
    def base(self):
        return self.most - sum(by for by, _ in self.raised)

    @property
    def slack(self):
        """Lines that a row may be above the code, so that small changes do not lower it."""
        return max(40, self.most * 3 // 100)

    def lowered(self, most):
        """Return the row at `most`: the last raises go first, then the base falls."""
        raised, over = list(self.raised), max(0, self.most - most)
        while over and raised:
            by, why = raised.pop()
            if by > over:
                raised.append((by - over, why))
            over -= min(by, over)
        return Row(min(most, self.most), tuple(raised))


@dataclass(frozen=True)
class Budgets:
    at_most: dict[str, Row]
    rooms: dict[str, Row]
    long_files: dict[str, int]
    long_functions: dict[str, int]
    circles: list[list[str]]
    named_twice: list[str]
    untested: list[str]

    def rows(self):
        return self.at_most | self.rooms

    def lists(self):
        return {
            "long_files": self.long_files,
            "long_functions": self.long_functions,
            "circles": [", ".join(circle) for circle in self.circles],
            "named_twice": self.named_twice,
            "untested": self.untested,
        }


def read(text):
    data = tomllib.loads(text)
    rows = {
        part: {n: _row(r) for n, r in data.pop(part).items()}
        for part in ("at_most", "rooms")
    }
    return Budgets(**rows, **data["lists"])


def _row(row):
    return Row(row["most"], tuple((r["by"], r["for"]) for r in row.get("raised", ())))


def counted():
    """Measure the code: rows as high as it is, and lists of all that breaks a rule."""
    rooms = house.rooms()
    return Budgets(
        at_most={
            "lines": Row(sum(rooms.values()) - rooms[house.BESIDE.name]),
            "loose_mappings": Row(house.loose_mappings()),
        },
        rooms={name: Row(lines) for name, lines in sorted(rooms.items())},
        long_files=house.long_files(),
        long_functions=house.long_functions(),
        circles=house.circles(),
        named_twice=list(house.named_twice()),
        untested=suite.untested(SPINE),
    )


def lowered(table, now):
    """Lower the table to what there is now; nothing is added and nothing rises."""

    def rows(old, new):
        return {
            name: row.lowered(new[name].most) for name, row in old.items() if name in new
        }

    def numbers(old, new):
        return {name: min(most, new[name]) for name, most in old.items() if name in new}

    return Budgets(
        rows(table.at_most, now.at_most),
        rows(table.rooms, now.rooms),
        numbers(table.long_files, now.long_files),
        numbers(table.long_functions, now.long_functions),
        [circle for circle in table.circles if circle in now.circles],
        [name for name in table.named_twice if name in now.named_twice],
        [name for name in table.untested if name in now.untested],
    )


def written(table):
    """Write the table as TOML, in the form of the file."""
    parts = [HEAD]
    for part in ("at_most", "rooms"):
        parts.append(f"[{part}] # {ABOUT[part]}")
        parts += [
            f'"{name}" = {_written(row)}' for name, row in getattr(table, part).items()
        ]
        parts.append("")
    parts.append("[lists]")
    for name, entries in table.lists().items():
        parts += [f"# {ABOUT[name]}", *_list(name, entries, table)]
    return "\n".join(parts) + "\n"


def _written(row):
    why = ", ".join(f'{{by = {by}, for = "{what}"}}' for by, what in row.raised)
    return f"{{most = {row.most}" + (f", raised = [{why}]" if why else "") + "}"


def _list(name, entries, table):
    if isinstance(entries, dict):
        return [f'{name}."{entry}" = {most}' for entry, most in entries.items()] or [
            f"{name} = {{}}"
        ]
    if name == "circles":
        return [f"{name} = [", *(f"  {_words(circle)}," for circle in table.circles), "]"]
    return [f"{name} = [", *(f'  "{entry}",' for entry in entries), "]"]


def _words(names):
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
