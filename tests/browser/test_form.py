"""The form of an experiment in a browser: faults, typed text, a keyboard, and axe."""

import re

import pytest
from tests_support import until
from widget_page import open_page, run_script

import kdlab

pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=document.title='broken'>"
TOLD = "() => window.orders.splice(0)"
SAY = "traits => window.hear({ kind: 'state', ...traits })"


class Shown:
    """The form of a config in a page; `answer` carries out what it asks for."""

    def __init__(self, page, name="quickstart", dark=False, width=1200):
        self.page, self.builder = page, kdlab.load(name).edit()
        open_page(page, "form", dark=dark, width=width, height=1000)
        page.evaluate("traits => { window.first = traits }", self.traits())
        run_script(page)
        page.locator(".kd[data-theme]").wait_for()

    def traits(self):
        shown = self.builder.page
        return {"state": shown.state, "controls": shown.controls, "again": shown.again}

    def answer(self):
        """Carry out what the page has asked for since the last call, and show the result."""
        orders = [order for order in self.page.evaluate(TOLD) if order["kind"] == "order"]
        for order in orders:
            self.builder.page._receive(self.builder.page, order, [])
        self.page.evaluate(SAY, self.traits())
        return [(order["do"], order["name"], order.get("text")) for order in orders]

    def section(self, name):
        return self.page.locator("summary", has_text=re.compile(f"^{name}")).first

    def field(self, key):
        return self.page.get_by_label(key, exact=True)


@pytest.fixture
def form(page, elsewhere):
    return lambda *how: Shown(page, *how)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nobody_is_shut_out(form, picture, dark):
    shade = "dark" if dark else "light"
    for width in (1200, 760, 420):
        shown = form("quickstart", dark, width)
        page = shown.page
        picture(f"form_closed_{width}_{shade}")
        for name in ("teacher", "loss", "train"):
            shown.section(name).click()
        shown.builder.set("loss.temperature", -1)
        shown.answer()
        picture(f"form_{width}_{shade}")
        page.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.locator(f".kd[data-theme={shade}]").count() == 1
        violations = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["target"]) for one in violations] == []


def test_what_is_typed_is_checked_and_what_is_being_typed_stays(form):
    shown = form()
    shown.section("loss").click()
    field = shown.field("loss.temperature")
    field.fill("0")
    until(lambda: shown.answer() == [("set", "loss.temperature", "0")])
    assert "loss.temperature: is 0" in shown.page.locator(".kd-verdict").inner_text()
    assert field.get_attribute("aria-invalid") == "true"
    assert shown.page.get_by_role("button", name="save").is_disabled()
    assert "has a fault" in shown.section("loss").inner_text()
    field.press("End")
    field.press(".")
    shown.builder.set("train.epochs", 3)
    shown.page.evaluate(SAY, shown.traits())
    assert field.input_value() == "0."
    assert field.evaluate("one => one.matches(':focus')")
    field.press("5")
    field.press("Enter")
    assert ("set", "loss.temperature", "0.5") in shown.answer()
    assert shown.builder.experiment.spec.loss.temperature == 0.5
    assert shown.page.get_by_role("button", name="save").is_enabled()
    assert "temperature: 0.5" in shown.page.locator(".kd-yaml").inner_text()


def test_one_of_a_family_is_typed(form):
    shown = form()
    shown.section("student").click()
    variant = shown.field("student.*")
    assert not variant.is_visible()
    shown.field("student").select_option("timm/*")
    assert shown.answer() == []
    assert shown.field("student").input_value() == "timm/*"  # whatever came meanwhile
    variant.fill("resnet18")
    variant.press("Enter")
    assert shown.answer() == [("set", "student", "timm/resnet18")]
    assert "type: timm/resnet18" in shown.page.locator(".kd-yaml").inner_text()
    pretrained = shown.field("student.pretrained")
    before = pretrained.is_checked()
    pretrained.click()
    value = "false" if before else "true"
    assert shown.answer() == [("set", "student.pretrained", value)]
    shown.field("student").select_option("students/digits_tiny")
    assert shown.answer() == [("set", "student", "students/digits_tiny")]
    assert not variant.is_visible()
    assert pretrained.count() == 0


def test_none_is_a_choice_where_a_part_may_be_left_out(form):
    shown = form()
    shown.section("teacher").click()
    shown.field("teacher").select_option(label="(none)")
    assert shown.answer() == [("set", "teacher", "null")]
    assert (
        "soft_labels/in_process needs one" in shown.page.locator(".kd-verdict").inner_text()
    )
    assert (
        shown.page.locator("summary", has_text="teacher")
        .first.inner_text()
        .startswith("teacher(none)")
    )


def test_a_keyboard_is_enough_and_what_is_open_stays_open(form, elsewhere):
    shown = form()
    summary = shown.section("student")
    summary.focus()
    summary.press("Enter")
    summary.press("Tab")
    assert shown.field("student").evaluate("one => one.matches(':focus')")
    shown.field("student").select_option("models/vgg8")
    shown.answer()
    assert shown.field("student").evaluate("one => one.matches(':focus')")
    assert shown.page.locator("details[open]").count() == 1
    shown.page.get_by_label("save as configs/").fill("mine")
    shown.page.get_by_role("button", name="save").press("Enter")
    assert shown.answer() == [("save", "mine", None)]
    assert (elsewhere / "configs" / "mine.yaml").exists()
    assert "kdlab run mine" in shown.page.locator(".kd-answer").inner_text()


def test_words_of_a_config_are_nothing_that_a_browser_runs(form):
    shown = form()
    for value in (EVIL, {EVIL: EVIL}):  # as a value, and in a fault
        shown.builder.set("tracking.experiment", value)
        shown.answer()
        assert EVIL in shown.page.locator(".kd-yaml").inner_text()
    assert shown.page.title() == "form"


def test_a_kernel_that_is_gone_is_said_with_all_that_was_changed(form):
    shown = form()
    shown.builder.set("train.epochs", 3)
    shown.answer()
    shown.page.evaluate("window.heard['comm_live_update']()")
    note = shown.page.locator(".kd-gone")
    note.wait_for()
    assert "kdlab.load('quickstart', {'train.epochs': 3}).edit()" in note.inner_text()
    assert shown.page.locator(".kd-fields[inert]").count() == 1
    shown.page.evaluate("window.hear({ kind: 'reset', curves: [] }, [])")
    note.wait_for(state="hidden")
    assert shown.page.locator("[inert]").count() == 0
