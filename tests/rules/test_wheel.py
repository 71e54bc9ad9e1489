"""The wheel carries cards and configs: installed elsewhere, it lists and loads them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
    ]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
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


def kdlab(site, cwd, *words):
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
    where = kdlab(installed, tmp_path, "-c", "import kdlab; print(kdlab.__file__)")
    assert where.startswith(str(installed))
    listing = kdlab(installed, tmp_path, "-m", "kdlab", "list")
    for name in ("quickstart", "teachers/digits_resnet", "losses/hinton", "timm/*"):
        assert name in listing
    shown = kdlab(installed, tmp_path, "-m", "kdlab", "show", "quickstart")
    assert "registry/teachers/digits_resnet.yaml" in shown


def test_holds_no_tests_and_no_machine_paths(installed):
    names = [p.relative_to(installed).as_posix() for p in installed.rglob("*")]
    assert not [n for n in names if n.startswith(("tests", "docs", "notebooks"))]
    assert "kdlab/py.typed" in names
