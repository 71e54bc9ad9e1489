"""The live view and the form in marimo notebooks, in a browser: the same anywidgets."""

import re
import subprocess
import sys

import pytest
from tests_support import answers, ended, free_port, run_folders, until

from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.run import Run

pytestmark = pytest.mark.nightly

LIVE = """
import marimo

app = marimo.App()


@app.cell
def _():
    import kdlab

    options = {"tracking.enabled": False, "train.epochs": 10**6}
    run = kdlab.load("smoke/in_process", options).start()
    return kdlab, run


@app.cell
def _(run):
    run.live()
"""


FORM = """
import marimo

app = marimo.App()


@app.cell
def _():
    import kdlab

    kdlab.load("smoke/none", {"tracking.enabled": False}).edit()
"""


@pytest.fixture
def served(kdlab_home, elsewhere, request):
    """URL of a marimo notebook."""
    pytest.importorskip("marimo")
    (elsewhere / "app.py").write_text(request.param)
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


@pytest.mark.parametrize("served", [LIVE], indirect=True)
def test_a_run_is_watched_and_steered_in_marimo(served, page, picture, elsewhere):
    page.goto(served)
    run = RunFolder(until(lambda: run_folders(elsewhere))[0])
    until(lambda: list(select(run.events, "member_started")))

    def press(name, kind):
        """Click a button, and wait for the event of its effect."""
        before = len(list(select(run.events, kind)))
        page.get_by_role("button", name=name, exact=True).click()
        until(lambda: len(list(select(run.events, kind))) > before)

    try:
        page.get_by_text("top-1 on validation").first.wait_for()
        drawn = page.locator("canvas").first
        assert drawn.evaluate("canvas => canvas.clientHeight") > 50
        press("pause", "paused")
        press("go on", "continued")
        press("checkpoint", "checkpoint_saved")
        field = page.get_by_label("lr_factor, number")
        field.fill("0.5")
        field.press("Enter")
        press("undo: lr_factor = 1", "settings_changed")
        picture("marimo")
        press("stop", "run_done")
        page.locator(".kd-state", has_text="stopped").wait_for()
        page.locator(".kd-controls").wait_for(state="hidden")
    finally:
        Run(run).kill()


@pytest.mark.parametrize("served", [FORM], indirect=True)
def test_a_spec_is_put_together_and_started_in_marimo(served, page, picture, elsewhere):
    page.goto(served)
    page.locator("summary", has_text=re.compile("^student")).click()
    page.get_by_label("student", exact=True).select_option("students/digits_small")
    page.get_by_text("use: students/digits_small").wait_for()
    page.locator("summary", has_text=re.compile("^train")).click()
    epochs = page.get_by_label("train.epochs", exact=True)
    epochs.fill("0")
    page.get_by_text("train.epochs: is 0, must be > 0").wait_for()
    picture("marimo_form")
    epochs.fill("1")
    page.locator(".kd-state", has_text="ready to run").wait_for()
    page.get_by_label("save as configs/").fill("mine")
    page.get_by_role("button", name="save").click()
    page.get_by_text("kdlab run mine").wait_for()
    saved = (elsewhere / "configs" / "mine.yaml").read_text()
    assert "students/digits_small" in saved
    page.get_by_role("button", name="start").click()
    run = Run(RunFolder(until(lambda: run_folders(elsewhere))[0]))
    page.get_by_text(f"kdlab.attach('{run.id}').live()").wait_for()
    until(lambda: run.state == "finished")
