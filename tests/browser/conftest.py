"""JupyterLab and a browser, both real."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests_support import answers, ended, free_port, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def jupyter(tmp_path, elsewhere):
    """Starts JupyterLab or Notebook 7 on the current folder; returns the URL of a notebook."""
    places = {
        f"JUPYTER_{name}_DIR": str(tmp_path / name.lower())
        for name in ("CONFIG", "DATA", "RUNTIME")
    }
    environment = os.environ | places | {"IPYTHONDIR": str(tmp_path / "ipython")}
    asks = tmp_path / "config/lab/user-settings/@jupyterlab/apputils-extension"
    asks.mkdir(parents=True)  # it would lie over the page, and over the pictures
    (asks / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    port, servers = free_port(), []

    def start(notebook, module="jupyterlab"):
        app = "LabApp" if module == "jupyterlab" else "JupyterNotebookApp"
        command = [
            sys.executable, "-m", module, "--no-browser", "--allow-root",
            "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
            "--IdentityProvider.token=t", f"--ServerApp.root_dir={elsewhere}",
            f"--{app}.expose_app_in_browser=True",
        ]  # fmt: skip
        with (tmp_path / "lab.log").open("wb") as log:
            servers.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            )
        until(lambda: answers(f"http://127.0.0.1:{port}/api?token=t"))
        place = "lab/tree" if app == "LabApp" else "notebooks"
        return f"http://127.0.0.1:{port}/{place}/{notebook}?token=t&reset"

    yield start
    for server in servers:
        ended(server)  # JupyterLab was seen to wait for a thread of its own for ever


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium; not for the session, as its loop would be in the way of others."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian: chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield opened
        opened.close()


def opened(browser):
    page = browser.new_page(viewport={"width": 1100, "height": 1300})
    page.set_default_timeout(180_000)
    return page


@pytest.fixture(scope="module")
def sheet(browser):
    """One page into which a module pushes what it shows."""
    return opened(browser)


@pytest.fixture
def page(browser, request):
    """A page of its own."""
    page = opened(browser)
    yield page
    folder = os.environ.get("KDLAB_PICTURES")
    if folder:  # how it was left, also by a failed test
        page.screenshot(path=Path(folder) / f"{request.node.name}.png")
    page.close()


@pytest.fixture
def picture(request):
    """Keeps a screenshot where KDLAB_PICTURES says: for the docs, and to be looked at."""
    folder = os.environ.get("KDLAB_PICTURES")
    used = "page" if "page" in request.fixturenames else "sheet"
    shown = request.getfixturevalue(used)

    def take(name):
        if folder:
            shown.screenshot(path=Path(folder) / f"{name}.png")

    return take
