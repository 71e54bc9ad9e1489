"""Runs in JupyterLab and Notebook 7, in a browser: the page, the kernel and orders to a run."""

import json
import re
from pathlib import Path

import pytest
from tests_support import run_folders, until
from written_runs import WrittenRun

import kdlab
from kdlab.changes.change import (
    CONTROL,
    AddTeacher,
    ChangeReader,
    DrainTeacher,
    GoOn,
    Pause,
    SaveCheckpoint,
)
from kdlab.changes.tunable import Tunable
from kdlab.config import Range
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder

playwright = pytest.importorskip("playwright.sync_api")

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02_lose_a_teacher.ipynb"
# Small cards: nobody has to wait for a teacher to be trained first.
SMALL = {"data": "data/digits_tiny", "teacher": "teachers/digits_tiny"}
SMALL |= {"student": "students/digits_tiny"}

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
    """Writes the first half of the notebook; the test does the rest by hand."""
    cells = json.loads(NOTEBOOK.read_text())
    small = ", ".join(f'"{key}": {{"use": "{card}"}}' for key, card in SMALL.items())
    for cell in cells["cells"]:
        source = cell["source"].replace("epochs = 40", "epochs = 500_000")
        cell["source"] = source.replace('"compare": []', f'"compare": [], {small}')
    cells["cells"] = [c for c in cells["cells"] if int(c["id"][1:]) <= 5]
    (elsewhere / "lose.ipynb").write_text(json.dumps(cells))
    return "lose.ipynb"


def cells_of(sources):
    """Return the text of a notebook of these cells."""
    cells = [
        {
            "cell_type": "code", "id": f"c{k}", "metadata": {}, "outputs": [],
            "execution_count": None, "source": source,
        }
        for k, source in enumerate(sources)
    ]  # fmt: skip
    kernel = json.loads(NOTEBOOK.read_text())["metadata"]
    written = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(written)


@pytest.fixture
def runs(elsewhere):
    """Runs in each state, written by hand; nobody trains."""
    path = elsewhere / "runs"
    dial = Tunable(name="loss.temperature", value=4.0, range=Range(gt=0))
    runs = {
        state: WrittenRun(path=path / state, tunables=[dial])
        for state in ("running", "finished", "failed", "stopped", "preparing")
    }
    runs["running"].begin().train(20)
    runs["finished"].begin().train(100).end()
    runs["failed"].begin().train(3).end("failed", "the loss is not finite")
    runs["stopped"].begin().train(50).end("stopped")
    runs["preparing"].say("teacher_training", member=None, epochs=40)
    return runs


@pytest.mark.slow("JupyterLab, a kernel and Chromium")
def test_runs_are_said_and_steered_in_lab(jupyter, runs, page, picture, elsewhere):
    """Orders from the page reach the run, and events of the run reach the page."""
    running = runs["running"]
    sources = [f"kdlab.attach({run.folder.run_id!r}).live()" for run in runs.values()]
    sources[0] = f"import kdlab\n{sources[0]}"
    (elsewhere / "states.ipynb").write_text(cells_of(sources))
    page.goto(jupyter("states.ipynb"))
    page.wait_for_function(IDLE)
    page.evaluate(RUN_ALL)
    for state in runs.keys() - {"preparing"}:
        page.locator(f".kd-state[data-state={state}]").first.wait_for()
    verdicts = page.locator(".kd-verdict").all_inner_texts()
    assert any("kdlab resume failed" in text and "the loss is" in text for text in verdicts)
    assert any("Continue: kdlab resume stopped" in text for text in verdicts)
    page.locator(".kd-list", has_text="training the teacher").first.wait_for()
    canvas = page.locator("canvas.kdlab-curves").first
    canvas.wait_for()
    before = canvas.screenshot()
    running.train(20)
    until(lambda: canvas.screenshot() != before)  # it moves

    field = page.get_by_label("loss.temperature, number").first
    field.fill("-5")  # is refused, and not taken for the least that a slider can show
    field.press("Enter")
    page.get_by_text(re.compile("temperature: is -5")).first.wait_for()
    assert running.changes() == []
    until(lambda: float(field.input_value()) > 0)
    field.fill("7")
    field.press("Enter")
    (settings_changed,) = until(running.changes)
    assert settings_changed.set == {"loss.temperature": 7.0}

    running.say("settings_changed", step=running.steps, values={"loss.temperature": 7.0})
    pressed(page, "undo: loss.temperature = 4")
    until(lambda: len(running.changes()) == 2)
    pressed(page, "checkpoint")
    until(lambda: len(running.changes()) == 3)
    pressed(page, "pause")
    until(lambda: len(running.changes()) == 4)
    running.say("paused", step=running.steps)
    page.locator(".kd-state[data-state=paused]").first.wait_for()
    pressed(page, "go on")
    until(lambda: len(running.changes()) == 5)
    assert running.changes()[1].set == {"loss.temperature": 4.0}
    assert [type(order) for order in running.changes()[2:]] == [SaveCheckpoint, Pause, GoOn]
    page.get_by_text("requested: go on").first.wait_for()

    page.evaluate(SAVE)  # as JupyterLab does by itself after a while
    page.reload()  # the page forgets; the kernel and the run do not
    page.wait_for_function(IDLE)
    page.locator("canvas.kdlab-curves").first.wait_for()
    page.wait_for_function(DRAWN)
    picture("states_lab")


@pytest.mark.nightly
def test_a_run_is_watched_and_steered_in_lab(jupyter, notebook, page, picture, elsewhere):
    """The page is reloaded, the kernel restarted, and the run stopped."""
    page.goto(jupyter(notebook))
    page.wait_for_function(IDLE)
    page.evaluate(RUN_ALL)
    run = RunFolder(until(lambda: run_folders(elsewhere))[0])

    def events(kind):
        return list(select(run.events, kind))

    canvas = page.locator("canvas.kdlab-curves").first
    canvas.wait_for()
    until(lambda: len(events("step_logged")) > 5)
    before = canvas.screenshot()
    until(lambda: canvas.screenshot() != before)  # it moves
    page.locator(".kd-name", has_text=re.compile(r"^teacher-\d$")).first.wait_for()

    field = page.get_by_label("loss.temperature, number").first
    field.fill("-5")  # is refused, and not taken for the least that a slider can show
    field.press("Enter")
    page.get_by_text(re.compile("temperature: is -5")).first.wait_for()
    assert not events("settings_changed")
    until(lambda: float(field.input_value()) > 0)
    field.fill("7")
    field.press("Enter")
    settings_changed = until(lambda: events("settings_changed"))
    assert settings_changed[0].values["loss.temperature"] == 7.0
    joined = len(events("teacher_joined"))
    pressed(page, "back to the last good checkpoint")
    (taken,) = until(lambda: events("settings_reverted"))
    assert (taken.step, taken.values) == (
        settings_changed[0].step,
        {"loss.temperature": 4.0},
    )
    until(lambda: len(events("teacher_joined")) > joined)
    until(lambda: events("step_logged")[-1].step > taken.step)
    until(lambda: float(field.input_value()) == 4.0)
    canvas.scroll_into_view_if_needed()  # typing has moved the page
    picture("live_monitor")

    chosen = page.get_by_label("Teacher", exact=True).first

    def killed():
        """Kill a teacher that serves: the chosen one may be a spare by the time of the click."""
        if events("teacher_lost"):
            return True
        if not chosen.input_value():
            chosen.select_option(index=0)
        pressed(page, "kill")
        return False

    until(killed, every_s=2.0)
    lost = until(lambda: events("teacher_lost"))[0].teacher
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
    steps = len(events("step_logged"))
    until(lambda: len(events("step_logged")) > steps)  # a new kernel, the same run
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
    assert events("run_done")[-1].state == "stopped"
    assert not any(e.samples_lost or e.samples_repeated for e in events("epoch_done"))


@pytest.mark.nightly
def test_a_run_is_watched_in_notebook_7(jupyter, notebook, page, picture, elsewhere):
    page.goto(jupyter(notebook, "notebook"))
    page.wait_for_function(IDLE)
    page.evaluate(RUN_ALL)
    canvas = page.locator("canvas.kdlab-curves").first
    canvas.wait_for()
    run = RunFolder(until(lambda: run_folders(elsewhere))[0])
    until(lambda: len(list(select(run.events, "step_logged"))) > 5)
    before = canvas.screenshot()
    until(lambda: canvas.screenshot() != before)  # it moves
    picture("notebook_7")
    pressed(page, "pause")
    until(lambda: list(select(run.events, "paused")))
    pressed(page, "go on")
    until(lambda: list(select(run.events, "continued")))
    page.get_by_label("lr_factor, number").first.fill("0.5")
    page.get_by_label("lr_factor, number").first.press("Enter")
    until(lambda: list(select(run.events, "settings_changed")))
    pressed(page, "undo: lr_factor = 1")
    until(lambda: len(list(select(run.events, "settings_changed"))) == 2)
    before = len(list(select(run.events, "checkpoint_saved")))
    pressed(page, "checkpoint")
    until(lambda: len(list(select(run.events, "checkpoint_saved"))) > before)
    pressed(page, "add teacher")
    page.get_by_text("requested: add teacher").first.wait_for()
    page.get_by_label("Teacher", exact=True).first.select_option(index=0)
    pressed(page, "drain")
    page.get_by_text(re.compile("requested: drain teacher-")).first.wait_for()
    asked = [type(one) for one in ChangeReader(run.path / CONTROL)()]
    assert [AddTeacher, DrainTeacher] == asked[-2:]
    pressed(page, "stop")
    until(lambda: run.status().state == "stopped")


def pressed(page, name):
    """Click the first button of that name, when there is one."""
    page.get_by_role("button", name=name, exact=True).first.click()


def in_a_new_cell(page, code):
    """Run this code in a new cell below all others."""
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


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["jupyterlab", "notebook"])
def test_each_state_of_a_run_is_said(jupyter, page, picture, elsewhere, module):
    """Finished, failed, stopped, and one that has not begun to train: its teacher learns first."""
    finished = kdlab.load("smoke/none", {"tracking.enabled": False}).start().wait()
    failed = kdlab.load("smoke/none", {"tracking.enabled": False, "train.lr": 1e30}).start()
    stopped = kdlab.load(
        "smoke/none", {"tracking.enabled": False, "train.epochs": 10**6}
    ).start()
    until(lambda: list(select(stopped.folder.events, "step_logged")))
    stopped.stop()
    for run in (failed, stopped):
        with pytest.raises(kdlab.KdlabError):
            _ = run.wait().result
    options = {
        "teacher.recipe.epochs": 10**6,
        "teacher.min_top1": None,
        "compare": ["in_process"],
    }
    waiting = kdlab.load("smoke/in_process", {"tracking.enabled": False, **options}).start()
    try:
        until(lambda: list(select(waiting.folder.events, "teacher_training")))
        runs = {
            "finished": finished,
            "failed": failed,
            "stopped": stopped,
            "running": waiting,
        }
        sources = [f"kdlab.attach({run.id!r}).live()" for run in runs.values()]
        sources[0] = f"import kdlab\n{sources[0]}"
        (elsewhere / "states.ipynb").write_text(cells_of(sources))
        page.goto(jupyter("states.ipynb", module))
        page.wait_for_function(IDLE)
        page.evaluate(RUN_ALL)
        for state in runs:
            page.locator(f".kd-state[data-state={state}]").first.wait_for()
        texts = page.locator(".kd-verdict").all_inner_texts()
        assert any(f"kdlab resume {failed.id}" in text and "loss" in text for text in texts)
        assert any(f"Continue: kdlab resume {stopped.id}" in text for text in texts)
        page.locator(".kd-list", has_text="training the teacher").first.wait_for()
        picture(f"states_{module}")
    finally:
        waiting.kill()
        waiting.wait()
