"""constraints.txt, with which CI installs, pins all that pyproject.toml asks for."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INTERNALS = {"dask", "distributed", "optuna", "timm", "anywidget"}  # kdlab builds upon them


def requirements(extras=("dev",)):
    """Requirements of kdlab, of these extras, and of the extras that they name."""
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    open_, seen = list(extras), set()
    while open_:
        extra = open_.pop()
        seen.add(extra)
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == "kdlab":
                open_ += requirement.extras - seen
            else:
                wanted.append(requirement)
    return wanted


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs)
    versions = {canonicalize_name(name): Version(version) for name, version in pairs}
    assert len(versions) == len(pairs)
    return versions


def test_all_that_is_asked_for_has_a_version_that_its_bounds_allow(pins):
    wanted = requirements()
    assert {"torch", "pytest", "redis"} <= {
        r.name for r in wanted
    }  # of kdlab, dev, an extra
    wrong = [
        f"{r} is {pins.get(canonicalize_name(r.name))}: make constraints"
        for r in wanted
        if pins.get(canonicalize_name(r.name), Version("0")) not in r.specifier
    ]
    assert not wrong


def test_no_build_is_pinned_that_others_cannot_have(pins):
    """A +cpu build of torch is on no index but its own, and torchvision fails beside it."""
    assert [name for name, version in pins.items() if version.local] == []
    assert pins["torch"] != Version("2.13.0")


def test_what_kdlab_builds_upon_has_an_upper_bound():
    bounded = {
        r.name
        for r in map(Requirement, PROJECT["dependencies"])
        if any(s.operator in ("<", "<=", "==", "~=") for s in r.specifier)
    }
    assert bounded >= INTERNALS
