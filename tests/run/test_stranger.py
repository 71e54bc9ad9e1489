"""A stranger's first evening: photos in, a small model out, no file edited."""

import json
import math
import os
import subprocess
import sys
import sysconfig
from itertools import groupby, islice
from pathlib import Path
from zipfile import ZipFile

import pytest
from safetensors.torch import load_file
from scipy import stats

import kdlab
from kdlab.config.folders import located

ROOT = Path(__file__).parents[2]
SIZED = ("data.size=96", "student.size=48", "train.threads=1")


@pytest.fixture
def command():
    """The words that start kdlab of this tree."""
    return [sys.executable, "-m", "kdlab"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The word that starts kdlab's wheel in a new environment, with packages of this one."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel, venv = tmp_path / "wheel", tmp_path / "venv"
    builds = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir")
    subprocess.run([*builds, str(wheel), str(ROOT)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps")
    subprocess.run([*pip, *map(str, wheel.glob("*.whl"))], check=True)
    where = (str(venv / "bin/python"), "-c", "import kdlab; print(kdlab.__file__)")
    used = subprocess.run(where, cwd=venv, capture_output=True, text=True, check=True)
    assert used.stdout.startswith(str(venv))
    return [str(venv / "bin/kdlab")]


class Evening:
    """A shell in an empty folder, with the user's photos."""

    def __init__(self, command, folder):
        self.command, self.folder = command, folder
        folder.mkdir()

    def says(self, *words):
        done = subprocess.run(
            [*self.command, *words],
            cwd=self.folder,
            env=os.environ
            | {
                "KDLAB_RUNS": str(self.folder / "runs"),
                "HF_HUB_OFFLINE": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answers(self, *words):
        return json.loads(self.says(*words, "--json").splitlines()[-1])

    def photos(self, **counts):
        """Unpack so many photos of each class from PHOTOS, a zip, or else from kdlab's."""
        classes = set()
        with ZipFile(os.environ.get("PHOTOS") or located("kdlab://clothes.zip")) as packed:
            names = sorted(n for n in packed.namelist() if n.endswith(".jpg"))
            for place, left in groupby(names, lambda name: name.rpartition("/")[0]):
                split, _, kind = place.partition("/")
                classes.add(kind)
                for part in ("train", "val") if split == "train" else ("test",):
                    folder = self.folder / "photos" / part / "wear" / kind
                    folder.mkdir(parents=True)
                    for name in islice(left, counts[part]):
                        (folder / Path(name).name).write_bytes(packed.read(name))
        return classes


def judged(untaught, taught, images):
    """Compute kind and words of the verdict again, from the binomial deviation."""
    shares = [p / 100 for p in (untaught, taught)]
    chance = math.hypot(*(100 * stats.binom.std(images, p) / images for p in shares))
    half = stats.norm.ppf(0.975) * chance
    if taught - untaught > half:
        return "helped", f"the teacher helped by {taught - untaught:.1f} points ("
    if taught > untaught:
        return "cannot_be_told", "whether the teacher helped cannot be told ("
    words = "made it worse" if untaught - taught > half else "did not help"
    return "did_not_help", f"the teacher {words} ("


def spent(evening, counts, minutes, *words):
    """Run the whole script, check each answer against the files, return the result."""
    classes = evening.photos(**counts)
    printed = evening.says("new", "mine", "--data", "photos", "--minutes", minutes)
    assert all(f"{kind} " in printed for kind in classes)
    assert "none is broken" in printed
    assert "split taken from your folders: train/, val/, test/" in printed
    written = {
        path: path.read_text()
        for path in (evening.folder / "configs/mine.yaml", evening.folder / "mine.ipynb")
    }
    result = evening.answers("run", "mine", *words, "tracking.enabled=false")
    assert {path: path.read_text() for path in written} == written

    tested = sorted((evening.folder / "photos/test").rglob("*.jpg"))
    rows = {row["source"]: row for row in result["runs"]}
    untaught, taught = (rows[source]["student_top1"] for source in ("none", "cached"))
    guess = 100 / len(classes)
    assert min(untaught, taught) > 2 * guess
    assert result["teacher_top1"] > max(4 * guess, untaught)
    verdict = result["verdict"]
    kind, words = judged(untaught, taught, len(tested))
    assert verdict["kind"] == kind
    assert verdict["sentence"].startswith(
        f"With its teacher {taught:.1f} %, alone {untaught:.1f} %: {words}"
    )
    assert f"{len(tested)} test images" in verdict["sentence"]

    tops = evening.answers("predict", "last", "photos/test", "--top", "1")["predictions"]
    assert len(tops) == len(tested)
    right = sum(top["classes"][0] == Path(top["image"]).parent.name for top in tops)
    # The students are of this run, and what is said of a file is what was tested.
    shares = [100 * right / len(tested) - top1 for top1 in (untaught, taught)]
    assert min(map(abs, shares)) <= 100 * 2 / len(tested)

    facts = evening.answers("examine", "last")
    assert facts["images"] == len(tested)
    assert Path(evening.folder, facts["page"]).read_text().startswith("<!doctype html>")
    evening.says("export", "last", "--out", "small.safetensors")
    small = evening.folder / "small.safetensors"
    weights = sum(tensor.numel() for tensor in load_file(small).values())
    assert result["costs"]["teacher"]["parameters"] > 5 * weights > 0
    again = evening.answers("predict", small.name, "photos/test", "--top", "1")
    assert [top["classes"] for top in again["predictions"]] == [
        top["classes"] for top in tops
    ]
    return result


@pytest.mark.slow("each command a Python with torch; two students learn from 160 photos")
def test_a_strangers_script(kdlab_home, command, tmp_path):
    """Epochs, views and sizes are set, so that every machine trains the same."""
    evening = Evening(command, tmp_path / "empty")
    few = ("train.epochs=90", "soft_labels.views=18", *SIZED)
    spent(evening, {"train": 16, "val": 4, "test": 20}, "0.2", *few)


@pytest.mark.slow("a wheel is built and installed, photos are learned for minutes")
@pytest.mark.nightly
def test_from_an_empty_folder_to_a_prediction(kdlab_home, installed, tmp_path, monkeypatch):
    """Ten minutes, sixty photos a class and kdlab's wheel suffice for a prediction."""
    evening = Evening(installed, tmp_path / "empty")
    result = spent(evening, {"train": 32, "val": 8, "test": 20}, "7")
    monkeypatch.chdir(evening.folder)
    seen = kdlab.attach(result["run_id"]).examine()
    assert len(seen.mistakes(5)) == 5
