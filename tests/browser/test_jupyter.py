"""The "lose a teacher" notebook in JupyterLab and Notebook 7, in a browser."""

import json
import re
from pathlib import Path

import pytest
from tests_support import run_folders, until

import kdlab
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder

playwright = pytest.importorskip("playwright.sync_api")

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_lose_a_teacher.ipynb"
# Small cards: nobody has to wait for a teacher to be trained first.
SMALL = {"data": "data/digits_tiny", "teacher": "teachers/digits_tiny"}
SMALL |= {"student": "students/digits_tiny"}

pytestmark = pytest.mark.slow

IDLE = (
    "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    " === 'idle'"
)
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
SAVE = "async () => { await window.jupyterapp.commands.execute('docmanager:save') }"
DRAWN = "() => document.querySelector('canvas.kdlab-curves').clientHeight > 100"
RESTART = (
    "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session"
    ".kernel.restart() }"
)


@pytest.fixture
def notebook(elsewhere):
    """The first half of the notebook; the rest is done by hand here."""
    cells = json.loads(NOTEBOOK.read_text())
    small = ", ".join(f'"{key}": {{"use": "{card}"}}' for key, card in SMALL.items())
    for cell in cells["cells"]:
        source = cell["source"].replace("epochs = 40", "epochs = 500_000")
        cell["source"] = source.replace('"compare": []', f'"compare": [], {small}')
    cells["cells"] = [c for c in cells["cells"] if int(c["id"][1:]) <= 5]
    (elsewhere / "lose.ipynb").write_text(json.dumps(cells))
    return "lose.ipynb"


def test_a_run_is_watched_and_steered_in_lab(jupyter, notebook, page, picture, elsewhere):
    """Reloaded, restarted and stopped, too."""
    page.goto(jupyter(notebook))
    page.wait_for_function(IDLE)
    page.evaluate(RUN_ALL)
    run = RunFolder(until(lambda: run_folders(elsewhere))[0])

    def events(kind):
        return list(select(run.events, kind))

    def button(name):
        return page.get_by_role("button", name=re.compile(f"^{name}$")).first

    canvas = page.locator("canvas.kdlab-curves").first
    canvas.wait_for()
    until(lambda: len(events("step")) > 5)
    before = canvas.screenshot()
    until(lambda: canvas.screenshot() != before)  # it moves
    page.locator(".kd-name", has_text=re.compile(r"^teacher-\d$")).first.wait_for()

    dial = page.locator(".widget-hbox:has(> .widget-slider)", has_text="temperature").first
    field = dial.locator("input[type=number]")
    field.fill("-5")  # is refused, and not taken for the least that a slider can show
    field.press("Enter")
    page.get_by_text(re.compile("temperature: is -5")).first.wait_for()
    assert not events("steered")
    until(lambda: float(field.input_value()) > 0)
    field.fill("7")
    field.press("Enter")
    steered = until(lambda: events("steered"))
    assert steered[0]["values"]["loss.temperature"] == 7.0
    canvas.scroll_into_view_if_needed()  # typing has moved the page
    picture("live_monitor")

    chosen = page.locator(".widget-dropdown select").first

    def killed():
        """One that serves now: what was chosen may be a spare by the time of the click."""
        if events("teacher_lost"):
            return True
        if not chosen.input_value():
            chosen.select_option(index=0)
        button("kill").click()
        return False

    until(killed, every_s=2.0)
    lost = until(lambda: events("teacher_lost"))[0]["teacher"]
    lane = page.locator(".kd-row", has_text=lost).first
    lane.locator(".kd-how", has_text="lost").wait_for()
    picture("lost_teacher")

    page.evaluate(SAVE)  # as JupyterLab does by itself after a while
    for _ in range(3):  # the page forgets; the kernel and the run do not
        page.reload()
        page.wait_for_function(IDLE)
        page.locator("canvas.kdlab-curves").first.wait_for()
        page.wait_for_function(DRAWN)
    shown = page.locator("canvas.kdlab-curves").first
    drawn = shown.screenshot()
    until(lambda: shown.screenshot() != drawn)

    page.evaluate(RESTART)
    page.wait_for_function(IDLE)
    steps = len(events("step"))
    until(lambda: len(events("step")) > steps)  # a new kernel, the same run
    note = page.locator(".kd-gone").first
    note.wait_for()  # the monitor of the kernel before does not look alive
    assert f'kdlab.attach("{run.run_id}").live()' in note.inner_text()
    note.scroll_into_view_if_needed()
    picture("kernel_gone")

    in_a_new_cell(page, "import kdlab\nrun = kdlab.attach()\nrun.live()")
    new = page.locator(".jp-Notebook-cell").last  # buttons above are of the kernel before
    stop = new.get_by_role("button", name=re.compile("^stop$"))
    stop.scroll_into_view_if_needed()
    stop.click()
    until(lambda: events("run_done"))
    assert events("run_done")[-1]["state"] == "stopped"
    assert not any(e["samples_lost"] or e["samples_repeated"] for e in events("epoch_done"))


def test_a_run_is_watched_in_notebook_7(jupyter, notebook, page, picture, elsewhere):
    page.goto(jupyter(notebook, "notebook"))
    page.wait_for_function(IDLE)
    page.evaluate(RUN_ALL)
    canvas = page.locator("canvas.kdlab-curves").first
    canvas.wait_for()
    run = RunFolder(until(lambda: run_folders(elsewhere))[0])
    until(lambda: len(list(select(run.events, "step"))) > 5)
    before = canvas.screenshot()
    until(lambda: canvas.screenshot() != before)  # it moves
    page.get_by_role("button", name=re.compile("^pause$")).first.click()
    until(lambda: list(select(run.events, "paused")))
    page.get_by_role("button", name=re.compile("^go on$")).first.wait_for()
    picture("notebook_7")


def in_a_new_cell(page, code):
    """Below all others, run."""
    page.evaluate(
        """async code => {
            const app = window.jupyterapp, panel = app.shell.currentWidget;
            panel.content.activeCellIndex = panel.content.widgets.length - 1;
            await app.commands.execute('notebook:insert-cell-below');
            panel.content.activeCell.model.sharedModel.setSource(code);
            app.commands.execute('notebook:run-cell');
        }""",
        code,
    )


@pytest.mark.parametrize("module", ["jupyterlab", "notebook"])
def test_each_state_of_a_run_is_said(jupyter, page, picture, elsewhere, module):
    """Finished, failed, stopped, and one that has not begun to train: its teacher learns first."""
    finished = kdlab.load("smoke/none", {"tracking.enabled": False}).start().wait()
    failed = kdlab.load("smoke/none", {"tracking.enabled": False, "train.lr": 1e30}).start()
    stopped = kdlab.load(
        "smoke/none", {"tracking.enabled": False, "train.epochs": 10**6}
    ).start()
    until(lambda: list(select(stopped.folder.events, "step")))
    stopped.stop()
    for run in (failed, stopped):
        with pytest.raises(kdlab.KdlabError):
            _ = run.wait().result
    own = {
        "teacher.recipe.epochs": 10**6,
        "teacher.min_top1": None,
        "compare": ["in_process"],
    }
    waiting = kdlab.load("smoke/in_process", {"tracking.enabled": False, **own}).start()
    try:
        until(lambda: list(select(waiting.folder.events, "teacher_training")))
        runs = {
            "finished": finished,
            "failed": failed,
            "stopped": stopped,
            "running": waiting,
        }
        cells = [
            {
                "cell_type": "code", "id": f"c{k}", "metadata": {}, "outputs": [],
                "execution_count": None, "source": f"kdlab.attach({run.id!r}).live()",
            }
            for k, run in enumerate(runs.values())
        ]  # fmt: skip
        cells[0]["source"] = f"import kdlab\n{cells[0]['source']}"
        kernel = json.loads(NOTEBOOK.read_text())["metadata"]
        written = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        (elsewhere / "states.ipynb").write_text(json.dumps(written))
        page.goto(jupyter("states.ipynb", module))
        page.wait_for_function(IDLE)
        page.evaluate(RUN_ALL)
        for state in runs:
            page.locator(f".kd-state[data-state={state}]").first.wait_for()
        told = page.locator(".kd-verdict").all_inner_texts()
        assert any(f"kdlab resume {failed.id}" in text and "loss" in text for text in told)
        assert any(f"To go on: kdlab resume {stopped.id}" in text for text in told)
        page.locator(".kd-list", has_text="training the teacher").first.wait_for()
        picture(f"states_{module}")
    finally:
        waiting.kill()
        waiting.wait()
