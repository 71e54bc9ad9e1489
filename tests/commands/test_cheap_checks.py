"""Mistyped words are found before any heavy import, and the message names them."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "torchvision",
    "timm",
    "mlflow",
    "distributed",
    "optuna",
    "sklearn",
    "matplotlib",
}
# A call, its exit code, and a part of its output.
WRONG = (
    ((), 2, "kdlab new NAME --data PHOTOS"),
    (("--version",), 0, "kdlab 0."),
    (("run", "quickstart", "data=/nowhere"), 2, "There is no file or folder /nowhere."),
    (("run", "quickstart", "loss=losses/hintn"), 2, "Nearest: losses/hinton"),
    (("rnu", "quickstart"), 2, "There is no command 'rnu'. Nearest: run"),
    (("runs", "--jsn"), 2, "unrecognized arguments: --jsn. Nearest: --json"),
    (("run", "/nowhere"), 2, "There is no file or folder /nowhere."),
    (("run", "quickstrat"), 2, "There is no config named 'quickstrat'. Nearest: quickstart"),
    (("show", "./x.yaml"), 2, "x.yaml."),
    (("data", "/nowhere/photos"), 2, "There is no file or folder /nowhere/photos."),
    (("predict", "last", "a.jpg"), 2, "There is no run 'last'"),
    (("predict", "~nobodyxyz/x", "a.jpg"), 2, "no user 'nobodyxyz'"),
    (("predict", "x" * 300, "a.jpg"), 2, "is no path"),
    (("predict", "no.onnx", "a.jpg"), 2, "no.onnx."),
    (("label", "last", "photos"), 2, "There is no run 'last'"),
    (("mark", "last", "--tag", "good"), 2, "There is no run 'last'"),
    (("delete", "last", "--yes"), 2, "There is no run 'last'"),
    (("new", "mine", "--data", "/nowhere"), 2, "There is no file or folder /nowhere."),
    (("new", "a b", "--data", "photos"), 2, "'a b' is no name of an experiment"),
    (("new", "x" * 300, "--data", "photos"), 2, "is no path"),
    (("new", "made", "--data", "photos"), 2, "made.yaml. Add --force to overwrite"),
    (("new", "mine", "--data", "photos", "--student", "timm/nonet"), 2, "no model 'nonet'"),
    (("new", "mine", "--data", "photos", "--weights", "w.pth"), 2, "w.pth."),
    (("new", "mine", "--data", "photos", "--weights", "photos"), 2, "photos is a folder;"),
    (("export", "last"), 2, "There is no run 'last'"),
    (("examine", "x/y"), 2, ""),
    (("attach", "last"), 2, "There is no run 'last'"),
    (("stop", "last"), 2, "There is no run 'last'"),
    (("resume", "/nowhere/run"), 2, "There is no file or folder /nowhere/run."),
    (("sweep", "nope"), 2, "There is no sweep named 'nope'"),
    (("attach", "sweeps/nope"), 2, "There is no sweep 'nope'"),
)  # fmt: skip
_ALL = """
import contextlib, io, json, sys
from kdlab.cli import main
ends = []
for call in json.loads(sys.argv[1]):
    lines = io.StringIO()
    with contextlib.redirect_stderr(lines), contextlib.redirect_stdout(lines):
        try:
            code = main(call)
        except SystemExit as error:
            code = error.code
    ends.append((code, lines.getvalue(), sorted(set(sys.modules) & set(json.loads(sys.argv[2])))))
print(json.dumps(ends))
"""


@pytest.mark.processes("what a command imports shows in a Python of its own")
def test_it_is_found_before_anything_heavy_is_imported(elsewhere):
    (elsewhere / "photos" / "cat").mkdir(parents=True)
    (elsewhere / "configs").mkdir()
    (elsewhere / "configs" / "made.yaml").write_text("about: mine\n")
    calls = json.dumps([call for call, _, _ in WRONG])
    done = subprocess.run(
        [sys.executable, "-c", _ALL, calls, json.dumps(sorted(HEAVY))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = json.loads(done.stdout)
    for (call, code, words), (ended, text, imported) in zip(WRONG, answers, strict=True):
        assert ended == code, (call, text)
        assert words in text, (call, text)
        assert "Traceback" not in text, call
        assert imported == [], call
