"""The wheel carries cards and configs: installed elsewhere, it lists and loads them."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import kdlab

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A source distribution, and the wheel that is made of it, as for an upload."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    return folder


def test_both_are_ready_for_an_upload(built):
    files = sorted(map(str, built.glob("kdlab-*")))
    assert [Path(f).suffix for f in files] == [".whl", ".gz"]
    check = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert all(kdlab.__version__ in file for file in files)  # stands in two places


@pytest.fixture(scope="module")
def installed(built):
    (wheel,) = built.glob("*.whl")
    site = built / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return site


def run(site, cwd, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_lists_and_loads_from_elsewhere(installed, tmp_path):
    where = run(installed, tmp_path, "-c", "import kdlab; print(kdlab.__file__)")
    assert where.startswith(str(installed))
    listing = run(installed, tmp_path, "-m", "kdlab", "list", "all")
    for name in ("quickstart", "teachers/digits_resnet", "losses/hinton", "timm/*"):
        assert name in listing
    assert "claims/" not in listing
    shown = run(installed, tmp_path, "-m", "kdlab", "show", "quickstart")
    assert "registry/teachers/digits_resnet.yaml" in shown


def test_holds_no_tests_and_no_machine_paths(installed):
    names = [p.relative_to(installed).as_posix() for p in installed.rglob("*")]
    outside = ("tests", "docs", "notebooks", "benchmarks", "kdlab/bench", "kdlab/reproduce")
    assert not [n for n in names if n.startswith(outside)]
    assert "kdlab/py.typed" in names


@pytest.mark.parametrize("words", [["bench", "transport"], ["reproduce"]])
def test_says_in_a_line_where_its_evidence_is(installed, tmp_path, words):
    done = subprocess.run(
        [sys.executable, "-m", "kdlab", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is installed without benchmarks/" in done.stderr


def test_the_source_distribution_has_the_evidence(built):
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"benchmarks/__init__.py", "benchmarks/reproduce/command.py"} <= names
