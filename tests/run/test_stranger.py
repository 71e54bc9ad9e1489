"""What somebody does on the first evening: photos in, a small model out, no file edited."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

import kdlab
from kdlab.config.folders import located

pytestmark = [
    pytest.mark.slow("a wheel is built and installed, photos are learned for minutes"),
    pytest.mark.nightly,
]


ROOT = Path(__file__).parents[2]


@pytest.fixture
def kdlab_says(tmp_path, monkeypatch):
    """The command of a wheel in an environment of its own; what kdlab needs is taken from here."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel, own = tmp_path / "wheel", tmp_path / "venv"
    builds = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir")
    subprocess.run([*builds, str(wheel), str(ROOT)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(own)], check=True)
    (site,) = own.glob("lib/python*/site-packages")
    (site / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (str(own / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps")
    subprocess.run([*pip, *map(str, wheel.glob("*.whl"))], check=True)

    def says(*words):
        command = [str(own / "bin/kdlab"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = (str(own / "bin/python"), "-c", "import kdlab; print(kdlab.__file__)")
    used = subprocess.run(where, cwd=own, capture_output=True, text=True, check=True)
    assert used.stdout.startswith(str(own))
    return says


def test_from_an_empty_folder_to_a_prediction(
    kdlab_home, kdlab_says, tmp_path, monkeypatch
):
    """With the photos that come with kdlab, as if they were one's own: a folder for each class.

    What is chosen depends on how fast the machine is just now; size and epochs are said, so that
    the same is trained everywhere.
    """
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KDLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    with ZipFile(located("kdlab://clothes.zip")) as packed:
        packed.extractall("photos")
    told = kdlab_says("new", "mine", "--data", "photos")
    assert "dress" in told
    assert "none is broken" in told
    written = {p: p.read_text() for p in (Path("configs/mine.yaml"), Path("mine.ipynb"))}
    overrides = [
        "data.size=32",
        "train.epochs=10",
        "train.threads=1",
        "teacher.recipe.epochs=20",
        "teacher.recipe.threads=1",
        "tracking.enabled=false",
    ]
    result = json.loads(kdlab_says("run", "mine", *overrides, "--json").splitlines()[-1])
    assert {path: path.read_text() for path in written} == written
    top1 = {row["source"]: row["student_top1"] for row in result["runs"]}
    assert top1["in_process"] > top1["none"]
    photo = next(Path("photos/test/pants").glob("*.*"))
    said = json.loads(kdlab_says("predict", "last", str(photo), "--json").splitlines()[-1])
    (one,) = said["predictions"]
    assert one["image"] == str(photo)
    assert set(one["classes"]) <= {path.name for path in Path("photos/test").iterdir()}
    found = json.loads(kdlab_says("examine", "last", "--json").splitlines()[-1])
    assert found["images"] == 641
    assert Path(found["page"]).read_text().startswith("<!doctype html>")
    seen = kdlab.attach(result["run_id"]).examine()
    assert len(seen.mistakes(5)) == 5
