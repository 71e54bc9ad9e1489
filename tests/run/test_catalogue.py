"""`kdlab show` says the same from what it kept as from the classes."""

import re
import subprocess
import sys

import pytest

from kdlab.run.catalogue import describe


def said(*arguments):
    """By a process of its own that has not imported torch."""
    asked = [sys.executable, "-X", "importtime", "-m", "kdlab", *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return done.stdout, re.search(r"\| +torch$", done.stderr, re.M) is not None


@pytest.mark.processes("three Pythons, of which one or two import torch")
@pytest.mark.parametrize(
    "name", [pytest.param("losses/hinton", marks=pytest.mark.nightly), "smoke/none"]
)
def test_what_was_shown_once_needs_no_torch_the_next_time(kdlab_home, elsewhere, name):
    (first, _), (second, torch) = said("show", name), said("show", name)
    assert first == second == f"{describe(name)}\n"
    assert not torch
    kept = list((kdlab_home / "shown").glob("*.txt"))
    assert kept
    for path in kept:
        path.write_text("")  # damaged
    assert said("show", name)[0] == first


@pytest.mark.processes
def test_a_typo_needs_no_torch(kdlab_home, elsewhere):
    asked = [sys.executable, "-X", "importtime", "-m", "kdlab", "run", "quickstart"]
    done = subprocess.run(
        [*asked, "train.lrr=1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "train.lrr: train has no key 'lrr'. Nearest: lr." in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.M)
