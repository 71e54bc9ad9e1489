"""`kdlab show` prints the same from its stored pages as from the classes."""

import re
import subprocess
import sys

import pytest

from kdlab.run.catalogue import describe


@pytest.fixture
def odd_files(elsewhere):
    """A dangling link, a folder and text that is not UTF-8, each where a config may be."""
    for folder in ("configs/sweeps", "registry/losses"):
        (elsewhere / folder / "dir.yaml").mkdir(parents=True)
        (elsewhere / folder / ".#foo.yaml").symlink_to("nowhere")
        (elsewhere / folder / "z.yaml").write_bytes(b"about: \xff odd\n")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["list"], "sweeps ("),
        (["list", "losses"], "\N{REPLACEMENT CHARACTER} odd"),
        (["show", "sweeps/z"], "about: \N{REPLACEMENT CHARACTER} odd"),
    ],
)
def test_an_odd_file_breaks_no_list(odd_files, kdlab_cli, words, answer):
    code, out, err = kdlab_cli(*words)
    assert code == 0, err
    assert answer in out
    assert "foo" not in out
    assert "dir" not in out


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
