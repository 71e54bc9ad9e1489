"""The live view in a marimo notebook, in a browser: no ipywidgets there, the same anywidget."""

import subprocess
import sys

import pytest
from tests_support import answers, ended, free_port, until

pytestmark = pytest.mark.nightly

APP = """
import marimo

app = marimo.App()


@app.cell
def _():
    import kdlab

    options = {"tracking.enabled": False, "train.epochs": 200}
    run = kdlab.load("smoke/in_process", options).start()
    return kdlab, run


@app.cell
def _(run):
    run.live()
"""


@pytest.fixture
def served(kdlab_home, elsewhere):
    """URL of a marimo notebook that starts a run and shows it."""
    pytest.importorskip("marimo")
    (elsewhere / "app.py").write_text(APP)
    port = free_port()
    command = [
        *(sys.executable, "-m", "marimo", "run", "app.py", "--headless"),
        *("--port", str(port), "--host", "127.0.0.1", "--token-password", "t"),
    ]
    with (elsewhere / "marimo.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/?access_token=t"
        until(lambda: answers(url))
        yield url
    finally:
        ended(server)


def test_a_run_is_watched_in_marimo(served, page, picture):
    page.goto(served)
    page.get_by_text("finished", exact=True).first.wait_for()
    drawn = page.locator("canvas").first
    assert drawn.evaluate("canvas => canvas.clientHeight") > 50
    page.get_by_text("top-1 on validation").first.wait_for()
    picture("marimo")
