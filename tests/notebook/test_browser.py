"""JupyterLab in a real browser: the "lose a teacher" notebook, watched and steered by hand."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kdlab.run.folder import RunFolder
from kdlab.train.events import select

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_lose_a_teacher.ipynb"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(230),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)"),
]


def until(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)  # between looks
    return found


@pytest.fixture
def lab(tmp_path, kdlab_home):
    """(URL, folder) of a JupyterLab with the notebook in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    cells = json.loads(NOTEBOOK.read_text())
    for cell in cells["cells"]:  # the first half: the rest is done by hand here
        if "epochs = " in cell["source"]:
            cell["source"] = cell["source"].replace("epochs = 40", "epochs = 5000")
    cells["cells"] = [c for c in cells["cells"] if int(c["id"][1:]) <= 5]
    (folder / "lose.ipynb").write_text(json.dumps(cells))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {
        f"JUPYTER_{name}_DIR": str(tmp_path / name.lower())
        for name in ("CONFIG", "DATA", "RUNTIME")
    }
    environment = os.environ | places | {"IPYTHONDIR": str(tmp_path / "ipython")}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=t",
        f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
    ]  # fmt: skip
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/api?token=t"))
        yield f"http://127.0.0.1:{port}/lab/tree/lose.ipynb?token=t&reset", folder
    finally:
        server.terminate()
        server.wait()
        for path in (folder / "runs").glob("*"):
            kill(path)


def kill(path):
    from kdlab.run.handle import Run

    Run(RunFolder(path)).kill()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.fixture
def page():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        opened = browser.new_page(viewport={"width": 1100, "height": 1300})
        opened.set_default_timeout(60_000)
        yield opened
        browser.close()


IDLE = (
    "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'"
)
RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
PICTURES = Path(os.environ.get("KDLAB_PICTURES") or "")


def picture(page, name):
    """Kept where KDLAB_PICTURES says: for the docs, and to be looked at."""
    if os.environ.get("KDLAB_PICTURES"):
        page.screenshot(path=PICTURES / f"{name}.png")


def button(page, name):
    return page.get_by_role("button", name=re.compile(f"^{name}$")).first


def test_a_run_is_watched_and_steered_from_a_page(lab, page):
    url, folder = lab
    page.goto(url)
    page.wait_for_function(IDLE)
    assert page.evaluate(RUN_ALL)
    run = RunFolder(until(lambda: list((folder / "runs").glob("*")))[0])

    def events(kind):
        return list(select(run.events, kind))

    canvas = page.locator("canvas.kdlab-curves").first
    canvas.wait_for()
    until(lambda: len(events("step")) > 5)
    before = canvas.screenshot()
    until(lambda: canvas.screenshot() != before)  # it moves
    page.locator("td", has_text="teacher-0").first.wait_for()

    slider = page.locator(".widget-slider", has_text="temperature").first
    readout = slider.locator(".widget-readout")
    readout.click()
    page.keyboard.press("Control+A")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    steered = until(lambda: events("steered"))
    assert steered[0]["values"]["loss.temperature"] == pytest.approx(7.0, abs=0.1)
    picture(page, "live_monitor")

    name = page.locator(".widget-dropdown select").first.input_value()
    button(page, "kill").click()
    until(lambda: [e for e in events("chaos") if e["by"] == "user"])
    until(lambda: events("teacher_lost"))
    row = page.locator("tr", has_text="lost").first
    row.wait_for()
    assert name or row.inner_text()
    picture(page, "lost_teacher")

    page.reload()  # the page forgets; the kernel and the run do not
    page.wait_for_function(IDLE)
    shown = page.locator("canvas.kdlab-curves").first
    shown.wait_for()
    until(lambda: shown.bounding_box()["height"] > 200)

    page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext"
        ".session.kernel.restart() }"
    )
    page.wait_for_function(IDLE)
    steps = len(events("step"))
    until(lambda: len(events("step")) > steps)  # a new kernel, the same run
    page.evaluate(
        "async () => { const k = window.jupyterapp.shell.currentWidget.sessionContext.session"
        ".kernel; const f = k.requestExecute({code: 'import kdlab; m = kdlab.attach().live()'});"
        " await f.done; }"
    )
    page.evaluate(
        "async () => { const k = window.jupyterapp.shell.currentWidget.sessionContext.session"
        ".kernel; const f = k.requestExecute({code: 'm.controls.stop.click()'}); await f.done; }"
    )
    until(lambda: events("run_done"))
    assert events("run_done")[-1]["state"] == "stopped"
    assert not any(e["samples_lost"] for e in events("epoch_done"))
