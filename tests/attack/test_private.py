"""Files of kdlab are for its user alone, whatever the umask of the shell that called it."""

import os
import subprocess
import sys

import pytest
from tests_support import until

import kdlab


def open_ones(*roots):
    for root in roots:
        for folder, folders, files in os.walk(root):
            for path in [folder, *(os.path.join(folder, n) for n in folders + files)]:
                if not os.path.islink(path) and os.stat(path).st_mode & 0o077:
                    yield path


@pytest.mark.processes
@pytest.mark.slow("two runs with MLflow: by the command, and by a notebook's process")
def test_runs_models_images_and_mlflow_are_for_their_user_alone(
    kdlab_home, elsewhere, monkeypatch
):
    """Beside run folders of mode 0700 lay mlflow.db, artifacts, decoded photos, teachers."""
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "home" / "below"))
    monkeypatch.setenv("KDLAB_RUNS", str(elsewhere / "kept" / "runs"))
    words = ["run", "smoke/in_process", "tracking.enabled=true", "train.epochs=1"]
    before = os.umask(0o022)
    try:
        subprocess.run([sys.executable, "-m", "kdlab", *words], check=True)
        roots = elsewhere / "home", elsewhere / "kept"
        assert (roots[1] / "runs" / "mlflow.db").is_file()
        assert list(open_ones(*roots)) == []
        run = kdlab.load(*words[1:]).start(lambda line: None).wait(timeout_s=600)
        assert run.state == "finished", run.status
        until(lambda: run.status.tracking is None)
    finally:
        os.umask(before)
    # A notebook's process writes with the umask that it has, into folders that are private.
    for root in roots:
        assert not root.stat().st_mode & 0o077
    assert [p for p in open_ones(run.path) if p.endswith((".safetensors", ".db"))] == []
