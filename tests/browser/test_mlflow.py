"""MLflow's own pages, by `kdlab ui`: a run with its overview, and runs compared."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from tests_support import free_port, until

import kdlab

pytestmark = pytest.mark.slow


@pytest.fixture
def ui(kdlab_home, elsewhere):
    """(URL of `kdlab ui`, two finished runs)."""
    options = {"compare": ["none", "in_process"], "seeds": [0, 1]}
    runs = [
        kdlab.load("smoke/in_process", options).start().wait(),
        kdlab.load("smoke/none", "train.lr=0.2").start().wait(),
    ]
    port = free_port()
    asked = [sys.executable, "-m", "kdlab", "ui", "--port", str(port)]
    server = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    try:
        line = next(line for line in server.stdout if line.startswith("MLflow: "))
        yield line.split()[1], runs
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def test_runs_are_looked_at_and_compared_in_mlflow(ui, page, picture):
    printed, runs = ui
    url = printed.partition("?")[0]
    for path in (
        "",
        "health",
        "api/2.0/mlflow/experiments/search?max_results=9",
        "?token=x",
    ):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url + path)
    page.goto(printed)  # leaves a cookie
    page.get_by_text("smoke").first.wait_for()
    assert "token" not in page.url
    state = json.loads((runs[0].path / "tracking.json").read_text())
    page.goto(f"{url}#/experiments/{state['experiment_id']}/runs/{state['runs']['']}")
    page.get_by_text("best-on-val %").first.wait_for()  # its description, as a table
    page.get_by_text("Show more").first.click()
    curves = page.locator("img[src*='overview.svg']").first
    curves.wait_for()
    until(lambda: curves.evaluate("image => image.naturalWidth") > 100)
    curves.scroll_into_view_if_needed()
    picture("mlflow_run")

    (link,) = kdlab.compare(*runs).links()
    page.goto(link.replace("http://127.0.0.1:5000/", url))
    page.get_by_text("Comparing 5 Runs").first.wait_for()  # two times two seeds, and one
    picture("mlflow_compare")
