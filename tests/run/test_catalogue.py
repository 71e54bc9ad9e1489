"""`kdlab show` prints the same from its stored pages as from the classes."""

import re
import subprocess
import sys

import pytest

from kdlab.run.catalogue import describe


def run_kdlab(*arguments):
    """Return what a new process of kdlab prints, and whether it imported torch."""
    asked = [sys.executable, "-X", "importtime", "-m", "kdlab", *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return done.stdout, re.search(r"\| +torch$", done.stderr, re.M) is not None


@pytest.mark.processes("three Pythons, of which one or two import torch")
@pytest.mark.parametrize(
    "name", [pytest.param("losses/hinton", marks=pytest.mark.nightly), "smoke/none"]
)
def test_what_was_shown_once_needs_no_torch_the_next_time(kdlab_home, elsewhere, name):
    (first, _), (second, torch) = run_kdlab("show", name), run_kdlab("show", name)
    assert first == second == f"{describe(name)}\n"
    assert not torch
    pages = list((kdlab_home / "shown").glob("*.txt"))
    assert pages
    for path in pages:
        path.write_text("")  # damaged
    assert run_kdlab("show", name)[0] == first


@pytest.mark.processes
def test_a_typo_needs_no_torch(kdlab_home, elsewhere):
    asked = [sys.executable, "-X", "importtime", "-m", "kdlab", "run", "quickstart"]
    done = subprocess.run(
        [*asked, "train.lrr=1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "train.lrr: train has no key 'lrr'. Nearest: lr." in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.M)
