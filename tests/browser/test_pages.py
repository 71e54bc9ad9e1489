"""Pages that are not live (comparison, examination, data sheet) in a browser, and axe."""

import json

import numpy as np
import pytest
from written_runs import WrittenRun

import kdlab
from kdlab.events.checks import CheckMade
from kdlab.run.outputs.data_sheet import look_at
from kdlab.run.outputs.examination import TEACHER, ModelInspection

pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = pytest.mark.slow("Chromium, and axe over whole pages")

SENTENCE = "With its teacher 91.5 %, alone 88.5 %: the teacher helped by 3.0 points."
DARK = 'data-jp-theme-light="false"'


def comparison(digits):
    """Return the comparison of two runs, each of both kinds, with other learning rates."""
    runs = []
    for lr in (0.05, 0.2):
        run = WrittenRun("smoke/in_process", {"train.lr": lr})
        rows = []
        for source, top1 in (("none", 88.5), ("in_process", 91.5)):
            run.steps = 0
            run.begin(f"{source}/seed0").train(30)
            for epoch in (1, 2, 3):
                top = top1 - 10 / epoch
                run.say("epoch_done", epoch=epoch, step=10 * epoch, validation_top1=top)
            run.say("member_done")
            rows.append({"member": run.member, "source": source, "student_top1": top1})
        numbers = {"before": 88.5, "after": 91.5, "gained": 3.0, "low": 1.0, "high": 5.0}
        verdict = numbers | {"kind": "helped", "by": "seeds", "sentence": SENTENCE}
        result = {"runs": rows, "teacher_top1": 94.0, "verdict": verdict}
        (run.folder.path / "result.json").write_text(json.dumps(result))
        runs.append(run.end().handle)
    return kdlab.compare(*runs)


def examination(digits):
    data, ids = digits[0], digits[0].test[:60]
    right = np.eye(10)[data.labels[ids]]
    wrong = np.roll(right, 1, 0)
    answers = {TEACHER: 0.1 + right, "none/seed0": 0.2 + right + 0.7 * wrong}
    shares = {name: one / one.sum(1, keepdims=True) for name, one in answers.items()}
    facts = {"title": "t", "found": "60 test images are few", "advice": "Take more"}
    tip = CheckMade(code="KD-D08", result="tip", **facts)
    return ModelInspection("r1: 60 test images", data, ids, shares, before=[tip])


def data(digits):
    return look_at("data/digits_tiny")


@pytest.fixture
def opened(browser, digits, kdlab_home, elsewhere):
    """A page of its own from its file, and what it has asked for."""
    contexts = []

    def show(make, dark=False):
        path = make(digits).save(elsewhere / "page.html")
        theme = "dark" if dark else "light"
        contexts.append(browser.new_context(color_scheme=theme))
        page, asked = contexts[-1].new_page(), []
        page.set_viewport_size({"width": 760, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page, asked

    yield show
    for context in contexts:
        context.close()


def ground(page):
    return page.locator(".kd").first.evaluate("e => getComputedStyle(e).backgroundColor")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", [comparison, examination, data])
def test_no_page_shuts_anybody_out(opened, make, dark):
    page, asked = opened(make, dark)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("h1").count() == 1
    assert ground(page) == ("rgb(18, 23, 29)" if dark else "rgb(246, 247, 249)")
    violations = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["target"]) for one in violations] == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_the_verdict_comes_first_and_a_table_sorts(opened):
    page, _ = opened(comparison)
    words = page.locator("main").inner_text()
    places = [words.index(one) for one in (SENTENCE, "Results", "Differences between")]
    assert places == sorted(places)
    head = page.locator("th", has_text="top-1 %").first
    column = page.locator("section", has_text="Results").locator("tbody td:nth-child(2)")
    assert column.all_inner_texts() == ["88.50", "91.50", "88.50", "91.50"]
    head.press("Enter")
    assert column.all_inner_texts() == ["91.50", "91.50", "88.50", "88.50"]
    head.click()
    assert column.all_inner_texts() == ["88.50", "88.50", "91.50", "91.50"]


def test_a_cell_opens_its_images(opened):
    page, _ = opened(examination)
    cell = page.locator(".kd-matrix button").first
    cell.click()
    assert page.locator("[popover]:popover-open figure").count() > 0


def test_a_cell_of_a_notebook_is_as_dark_as_what_is_around_it(opened, digits):
    page, _ = opened(examination)
    shown = examination(digits)._repr_html_()
    for around, colour in (("", "rgb(246, 247, 249)"), (DARK, "rgb(18, 23, 29)")):
        page.set_content(f'<html lang="en"><body {around}>{shown}</body></html>')
        assert ground(page) == colour
