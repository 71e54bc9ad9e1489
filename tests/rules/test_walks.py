"""The walks of docs/architecture.md: each step names the next, and there are few."""

import ast
import itertools
import re

import pytest
from rules import house

PAGE = (house.ROOT / "docs" / "architecture.md").read_text()
WALK = re.compile(
    r"<!-- walk: (\w+), (\d+) calls, (\d+) files -->\n```text\n(.*?)```", re.DOTALL
)
WALKS = {
    name: (int(calls), int(files), [tuple(line.split(": ")) for line in steps.splitlines()])
    for name, calls, files, steps in WALK.findall(PAGE)
}
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def source(file):
    return (house.KDLAB / f"{file}.py").read_text()


def function(file, dotted):
    """The definition of a function or a method in a file of the package."""
    node = ast.parse(source(file))
    for name in dotted.split("."):
        (node,) = (n for n in node.body if isinstance(n, DEFINITIONS) and n.name == name)
    return node


def names(node):
    """Variables, attributes and methods that its source names."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def test_the_walks_of_the_house_are_on_the_page():
    assert set(WALKS) == {"member", "round"}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_short(walk):
    calls, files, steps = WALKS[walk]
    assert len(steps) - 1 <= calls
    assert len({file for file, _ in steps}) <= files


@pytest.mark.parametrize("walk", WALKS)
def test_each_step_is_named_by_one_before_it(walk):
    """By a step before, or, where it is a process of its own, by its module."""
    _, _, steps = WALKS[walk]
    named = set()
    for (file, dotted), (after, following) in itertools.pairwise(steps):
        named |= set(names(function(file, dotted)))
        begins = f'"kdlab.{after.replace("/", ".")}"' in source(file)
        assert begins or following.split(".")[-1] in named, (dotted, following)
    function(*steps[-1])  # it exists


def test_a_step_that_nobody_names_would_be_seen():
    assert "publish" not in set(names(function("train/student", "StudentLoop.run")))
    with pytest.raises(ValueError, match="not enough values"):
        function("train/student", "StudentLoop.walk")
