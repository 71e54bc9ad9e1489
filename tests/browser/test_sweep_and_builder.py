"""The table of a sweep and the spec builder in JupyterLab, in a browser."""

import json
import re

import pytest
from small_sweeps import TRAINED
from tests_support import run_folders, until

from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder

pytestmark = pytest.mark.nightly

CELLS = {
    "sweep": [
        f"import kdlab\nsweep = kdlab.sweep({TRAINED | {'trials': 2000}!r}, study='seen')",
        "sweep.live()",
    ],
    "builder": ["import kdlab\nkdlab.load('smoke/none').edit()"],
    "blocks": [
        "import kdlab\nrun = kdlab.load('smoke/blockwise', 'train.epochs=2000').start()",
        "run.live()",
    ],
}
READY = (
    "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'"
)
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"


@pytest.fixture
def opened(jupyter, page, elsewhere):
    """A notebook of few cells, run in JupyterLab."""

    def open_(name):
        cells = [
            {
                "cell_type": "code", "id": f"c{k}", "source": source, "metadata": {},
                "outputs": [], "execution_count": None,
            }
            for k, source in enumerate(CELLS[name])
        ]  # fmt: skip
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {"cells": cells, "metadata": {"kernelspec": kernel}}
        notebook |= {"nbformat": 4, "nbformat_minor": 5}
        (elsewhere / f"{name}.ipynb").write_text(json.dumps(notebook))
        page.goto(jupyter(f"{name}.ipynb"))
        page.wait_for_function(READY)
        page.evaluate(RUN_ALL)

    return open_


def button(page, name):
    return page.get_by_role("button", name=re.compile(f"^{name}$")).first


def test_a_sweep_is_watched_and_stopped(opened, page, picture):
    opened("sweep")
    page.locator(".kd-trials td").nth(3).wait_for()
    chart = page.locator(".kd-parallel svg").first
    chart.wait_for()
    place = until(page.locator(".jp-OutputArea-output").last.bounding_box)
    box = until(chart.bounding_box)  # none while it is replaced by a newer picture
    assert box["x"] + box["width"] <= place["x"] + place["width"] + 1  # nothing is cut off
    picture("sweep")
    button(page, "stop").click()
    page.locator(".kd-state", has_text="stopped").first.wait_for()


def test_a_spec_is_put_together_with_the_messages_of_the_command_line(
    opened, page, picture, elsewhere
):
    opened("builder")
    page.locator("summary", has_text=re.compile("^loss")).click()
    typed = page.get_by_label("loss.temperature", exact=True)
    typed.fill("0")
    page.get_by_text("loss.temperature: is 0, must be > 0").wait_for()
    typed.press("End")  # it has the focus still
    picture("builder_fault")
    typed.fill("3")
    page.locator(".kd-state", has_text="ready to run").wait_for()
    page.get_by_text("temperature: 3", exact=False).first.wait_for()  # the YAML follows
    picture("builder")
    button(page, "save").click()
    page.get_by_text("kdlab run my/experiment").wait_for()
    (saved,) = (elsewhere / "configs").rglob("*.yaml")
    assert "temperature: 3" in saved.read_text()
    button(page, "start").click()
    run = RunFolder(until(lambda: run_folders(elsewhere))[0])
    until(lambda: run.status().state == "finished")
    page.locator(".kd-state[data-state=finished]").wait_for()  # live, below the form


def test_a_pipeline_is_watched_and_paused(opened, page, picture, elsewhere):
    opened("blocks")
    page.locator("canvas.kdlab-curves").first.wait_for()
    gantt = page.locator(".kd-gantt svg").first
    gantt.wait_for()
    before = gantt.inner_html()
    until(lambda: gantt.inner_html() != before)  # of a later epoch
    picture("pipeline")
    button(page, "pause").click()
    button(page, "go on").wait_for()
    run = RunFolder(run_folders(elsewhere)[0])
    assert list(select(run.events, "paused"))
    button(page, "stop").click()
    until(lambda: run.status().state == "stopped")
