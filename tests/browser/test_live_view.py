"""Each state of the live view in a browser: what it says, what a keyboard does, and axe."""

import base64
import io

import pytest
from PIL import Image
from tests_support import event

from kdlab.bench import live as bench
from kdlab.notebook import live_state
from kdlab.notebook.live_widget import LiveWidget, script, style
from kdlab.notebook.sweep_watch import SweepWatch
from kdlab.notebook.watch import PANELS, Watch

pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=document.title='broken'>"


def _strip():
    drawn = io.BytesIO()
    strip = Image.new("RGB", (4 * 96, 96))
    for k, colour in enumerate(("#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8")):
        strip.paste(Image.new("RGB", (96, 96), colour), (96 * k, 0))
    strip.save(drawn, "PNG")
    return f"data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}"


STRIP = _strip()


def trained(ends=None):
    watch = Watch()
    watch.see(event("run_started", 0.0, experiment=EVIL, members=["served/seed0"]))
    watch.see(event("member_started", 0.0, member="served/seed0", source="served", seed=0))
    watch.see(event("scheduled", 0.0, t_s=900.0, t_t=100.0, n=2, got=2))
    for name in ("teacher-0", EVIL):
        watch.see(event("teacher_joined", 0.0, name=name, t_t=100.0, device="cpu"))
    labels = ["shirt", "dress", "a class with quite a long name", EVIL]
    watch.see(event("images_chosen", 0.0, path="/nowhere", side=96, labels=labels))
    watch.see(
        event(
            "images_answered", 0.0, member="teacher", step=0, epoch=0, said=labels,
            shares=[99.0] * 4,
        )
    )  # fmt: skip
    for k in range(1, 301):
        watch.see(
            event(
                "step", k / 5, member="served/seed0", step=k, of_steps=600, epoch=k // 100,
                loss=2 - k / 200, samples_per_second=800.0, starved_s=0.0, volume=float(k),
                queued_s=float(k), computed_s=float(k),
            )
        )  # fmt: skip
        if k % 100 == 0:
            said = ["shirt"] * 3 + [EVIL]
            watch.see(
                event(
                    "images_answered", k / 5, member="served/seed0", step=k, epoch=k // 100,
                    said=said, shares=[10.0 + k / 10] * 4,
                )
            )  # fmt: skip
    watch.see(event("teacher_lost", 60.0, teacher="teacher-0", why="killed", resent=3))
    if ends is not None:
        watch.see(
            event("run_done", 61.0, state=ends, error=EVIL if ends == "failed" else None)
        )
    return watch


def searched():
    watch = SweepWatch()
    space = {
        "train.lr": {"low": 0.01, "high": 1.0, "log": True},
        "loss.weight": {"low": 0, "high": 1},
    }
    watch.see(
        event(
            "sweep_started", 0.0, study="s", spec={"space": space, "trials": 30},
            objectives=["validation_top1"], directions=["maximize"],
        )
    )  # fmt: skip
    for k in range(20):
        values = {"train.lr": 0.01 * (k + 1), "loss.weight": k / 20}
        watch.see(event("trial_started", 1.0 + k, number=k, values=values, why="suggested"))
        found = {"validation_top1": 50.0 + k % 7}
        watch.see(
            event(
                "trial_done", 1.5 + k, number=k, state="complete", seconds=0.5, ended=k + 1,
                of_trials=30, set=values, values_found=found,
            )
        )  # fmt: skip
    return watch


def curves(watches):
    found = {
        (*key, label): curve
        for label, watch in watches.items()
        for key, curve in watch.curves.items()
    }
    return dict(sorted(found.items(), key=lambda one: list(PANELS).index(one[0][0])))


def scene(name):
    """(state, curves) of the view."""
    if name == "sweep":
        watch = searched()
        return watch.page({"train.lr": 0.8, "loss.weight": 0.2}), watch.curves
    if name == "several":
        both = {"one": trained(), "another": trained("finished")}
        return live_state.of_several(both), curves(both)
    watch = Watch() if name == "waiting" else trained(None if name == "running" else name)
    return live_state.of_run(watch, "r"), curves({"": watch})


@pytest.fixture
def shown(page):
    """Opens the view of a scene, on a light or a dark page of some width."""

    def show(name, dark=False, width=1280):
        state, points = scene(name)
        widget, sent = LiveWidget("r", "", lambda: None), []
        widget.send = lambda message, buffers: sent.append((message, buffers[0]))
        widget.reset(points)
        page.set_viewport_size({"width": width, "height": 900})
        ground, ink = ("#111", "#eee") if dark else ("#fff", "#111")
        page.set_content(
            f'<html lang="en"><title>live</title><body style="background:{ground};color:{ink}">'
            "<main><h1>live</h1><h2>view</h2><div id=here></div></main></body></html>"
        )
        page.add_style_tag(content=style())
        page.evaluate(bench._HARNESS, script())
        page.evaluate(
            "messages => { window.play(messages) }", bench.packed(state, sent, STRIP)
        )
        page.locator(".kd-blank:visible, .kd-plot:visible").first.wait_for()
        return page

    return show


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "name", ["waiting", "running", "finished", "failed", "several", "sweep"]
)
def test_no_state_shuts_anybody_out(shown, picture, name, dark):
    for width in (1280, 390):
        page = shown(name, dark, width)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.locator(f".kd[data-theme={'dark' if dark else 'light'}]").count() == 1
        found = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["target"]) for one in found] == []
        picture(f"live_{name}_{width}_{'dark' if dark else 'light'}")
    assert page.title() == "live"  # whatever names say is text


def test_it_says_where_the_run_stands(shown):
    page = shown("running")
    assert page.locator(".kd-state").first.inner_text() == "running"
    assert "about 60 s left" in page.locator(".kd-left").inner_text().replace(
        "1:00 min", "60 s"
    )
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "50"
    assert "waits 0% of its" in page.locator(".kd-verdict").inner_text()
    assert page.locator(".kd-how", has_text="lost").count() == 1
    frames = page.locator(".kd-frames li")
    assert frames.count() == 4
    assert frames.first.inner_text().split("\n") == [
        "shirt", "at first shirt 20 %", "student shirt 40 %", "teacher shirt 99 %",
    ]  # fmt: skip
    assert page.locator(".kd-said[data-right=false]").count() == 4
    assert "student after epoch 3" in page.locator(".kd-film .kd-note").inner_text()
    page = shown("failed")
    assert "kdlab resume r" in page.locator(".kd-verdict").inner_text()


def test_a_chart_is_read_zoomed_and_moved_by_keyboard(shown):
    page = shown("running")
    plot = page.locator(".kd-plot").first
    assert "newest: loss 0.5" in plot.get_attribute("aria-label")
    whole = plot.screenshot()
    plot.focus()
    plot.press("ArrowLeft")
    tip = page.locator(".kd-tip:visible").first
    tip.wait_for()
    before = tip.inner_text()
    plot.press("ArrowLeft")
    assert tip.inner_text() != before
    plot.press("+")
    zoomed = plot.screenshot()
    plot.press("Shift+ArrowLeft")
    assert plot.screenshot() != zoomed
    plot.press("0")
    plot.evaluate("plot => plot.blur()")
    assert plot.screenshot() == whole


def test_curves_are_hidden_and_smoothed(shown):
    page = shown("several")
    plot, key = page.locator(".kd-plot").first, page.locator(".kd-key").first
    both = plot.screenshot()
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    page.mouse.move(0, 0)
    assert plot.screenshot() != both
    key.click()
    page.mouse.move(0, 0)
    assert plot.screenshot() == both
    page.get_by_role("slider").fill("0.9")
    assert plot.screenshot() != both
