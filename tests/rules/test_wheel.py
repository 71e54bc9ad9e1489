"""The wheel carries cards and configs: installed elsewhere, it lists and loads them."""

import os
import subprocess
import sys
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
    shown = run(installed, tmp_path, "-m", "kdlab", "show", "quickstart")
    assert "registry/teachers/digits_resnet.yaml" in shown


def test_holds_no_tests_and_no_machine_paths(installed):
    names = [p.relative_to(installed).as_posix() for p in installed.rglob("*")]
    assert not [n for n in names if n.startswith(("tests", "docs", "notebooks"))]
    assert "kdlab/py.typed" in names
