"""MLflow's own pages, by `kdlab ui`: a run with its overview, and runs compared."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from tests_support import ended, free_port, until

import kdlab

pytestmark = pytest.mark.nightly


@pytest.fixture
def ui(kdlab_home, elsewhere):
    """(URL of `kdlab ui`, two finished runs)."""
    tracking = {"tracking.enabled": True}
    options = {"compare": ["none", "in_process"], "seeds": [0, 1], **tracking}
    runs = [
        kdlab.load("smoke/in_process", options).start().wait(),
        kdlab.load("smoke/none", "train.lr=0.2", tracking).start().wait(),
    ]
    port = free_port()
    asked = [sys.executable, "-m", "kdlab", "ui", "--port", str(port)]
    server = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    try:
        line = next(line for line in server.stdout if line.startswith("MLflow: "))
        yield line.split()[1], runs
    finally:
        ended(server, signal.SIGINT)


def images_are_seen(page, picture):
    """Look at the card of the watched images, in full, at the last step."""
    page.set_viewport_size({"width": 1300, "height": 4200})  # cards are drawn when in view
    title = "watched images"
    page.get_by_text(title).first.wait_for()
    card = page.get_by_test_id("experiment-view-compare-runs-card").filter(has_text=title)
    step = card.locator("input[type=number]")
    step.fill(step.get_attribute("max"))
    step.blur()
    card.locator("button").first.click()  # full screen
    shown = page.get_by_role("dialog").locator("img[src*='get-artifact']").first
    shown.wait_for()
    until(lambda: shown.evaluate("image => image.naturalWidth") > 100)
    picture("mlflow_images")


def in_the_order_one_reads(page, experiment, state, picture):
    """Look at the pages of a training: curves first, single numbers last; the images by step."""
    run_id = state["runs"]["in_process/seed0"]
    page.set_viewport_size({"width": 1300, "height": 2600})
    page.goto(f"{experiment}/runs/{run_id}/model-metrics")
    sections = ["learning", "soft_labels", "speed", "test", "what_it_costs"]
    named = [
        page.get_by_text(re.compile(rf"^{name}( \(\d+\))?$")).first for name in sections
    ]
    named[-1].wait_for()
    tops = [section.bounding_box()["y"] for section in named]
    assert tops == sorted(tops)
    picture("mlflow_metrics")
    images_are_seen(page, picture)
    page.goto(f"{experiment}/runs/{run_id}/artifacts")
    page.get_by_text("images", exact=True).first.wait_for()
    page.goto(f"{experiment}/models")
    page.get_by_text("in_process-seed0").first.wait_for()
    picture("mlflow_models")
    page.set_viewport_size({"width": 1300, "height": 900})


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
            urllib.request.urlopen(f"http://127.0.0.1:{urlsplit(url).port}/{path}")
    page.goto(printed)  # leaves a cookie
    state = json.loads((runs[0].path / "tracking.json").read_text())
    # The view of trainings, of what ran last; who learns from whom.
    assert (
        f"#/experiments/{state['experiment_id']}/runs?workflowType=machine_learning"
        in printed
    )
    named = page.locator(f"a[href*='{state['runs']['']}']").first
    named.wait_for()
    assert runs[0].id[-4:] in named.inner_text()
    assert "token" not in page.url
    page.set_viewport_size({"width": 1400, "height": 900})
    for column in ("top1", "plain_top1", "gained_with_teacher", "teacher_top1"):
        head = page.get_by_text(f"test/{column}", exact=True).first
        head.wait_for()
        where = head.bounding_box()
        assert where["x"] + where["width"] <= 1400
    picture("mlflow_runs")
    named.click()
    page.get_by_text("Created at").first.wait_for()
    assert page.get_by_text("Evaluation runs").count() == 0  # still the view of trainings
    in_the_order_one_reads(
        page, f"{url}#/experiments/{state['experiment_id']}", state, picture
    )
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
