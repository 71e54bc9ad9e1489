"""Each state of the live view in a browser: what it says, what a keyboard does, and axe."""

import base64
import io

import pytest
from PIL import Image
from tests_support import event, until
from widget_page import open_page, run_script
from written_runs import WrittenRun

import kdlab
from benchmarks import live as bench
from kdlab.changes.tunable import Tunable
from kdlab.config import Range
from kdlab.events.run_state import PANELS
from kdlab.notebook import live_state
from kdlab.notebook.controls import dial
from kdlab.notebook.live_widget import LiveWidget
from kdlab.notebook.sweep_watch import SweepWatch
from kdlab.notebook.watch import Mark, Watch

pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = pytest.mark.slow

BACK = "back to the last good checkpoint"
EVIL = "<img src=x onerror=document.title='broken'>"


def _strip():
    drawn = io.BytesIO()
    strip = Image.new("RGB", (4 * 96, 96))
    for k, colour in enumerate(("#3b82c4", "#d1603d", "#3f9d64", "#8f5fb8")):
        strip.paste(Image.new("RGB", (96, 96), colour), (96 * k, 0))
    strip.save(drawn, "PNG")
    return f"data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}"


STRIP = _strip()


def compared():
    """A result of two seeds, trained both ways."""
    rows = [
        {"member": f"{source}/seed{seed}", "source": source, "seed": seed, "samples_lost": 0,
         "student_top1": top1 + seed, "validation_top1": top1 + 2 * seed}
        for source, top1 in (("none", 88.0), ("served", 91.0)) for seed in (0, 1)
    ]  # fmt: skip
    sentence = "With its teacher 91.5 %, alone 88.5 %: the teacher helped by 3.0 points."
    verdict = {"kind": "helped", "sentence": sentence}
    return {"runs": rows, "source": "served", "teacher_top1": 94.25, "verdict": verdict}


def trained(ends=None):
    watch = Watch()
    watch.apply(event("run_started", 0.0, experiment=EVIL, members=["served/seed0"]))
    watch.apply(
        event("member_started", 0.0, member="served/seed0", source="served", seed=0)
    )
    watch.apply(event("scheduled", 0.0, t_s=900.0, t_t=100.0, n=2, got=2))
    for name in ("teacher-0", EVIL):
        watch.apply(event("teacher_joined", 0.0, name=name, t_t=100.0, device="cpu"))
    labels = ["shirt", "dress", "a class with quite a long name", EVIL]
    watch.apply(event("images_chosen", 0.0, path="/nowhere", side=96, labels=labels))
    watch.apply(
        event(
            "images_answered", 0.0, member="teacher", step=0, epoch=0, said=labels,
            shares=[99.0] * 4,
        )
    )  # fmt: skip
    for k in range(1, 301):
        watch.apply(
            event(
                "step_logged", k / 5, member="served/seed0", step=k, of_steps=600, epoch=k // 100,
                loss=2 - k / 200, samples_per_second=800.0, starved_s=0.0, volume=float(k),
                queued_s=float(k), computed_s=float(k),
            )
        )  # fmt: skip
        if k % 100 == 0:
            answers = ["shirt"] * 3 + [EVIL]
            watch.apply(
                event(
                    "images_answered", k / 5, member="served/seed0", step=k, epoch=k // 100,
                    said=answers, shares=[10.0 + k / 10] * 4,
                )
            )  # fmt: skip
    watch.apply(event("teacher_lost", 60.0, teacher="teacher-0", why="killed", resent=3))
    for code, result, text in (
        ("KD-D01", "issue", f"2 images of validation or test are in train, too:\n  {EVIL}"),
        ("KD-D08", "tip", "300 test images: a top-1 of 80 % is known to ± 4.5 points only"),
        ("KD-D04", "passed", ""),
    ):
        finding = {"code": code, "result": result, "title": "t", "found": text}
        watch.apply(event("check_made", 60.0, advice="Delete one of each pair", **finding))
    if ends is not None:
        error, result = (EVIL, None) if ends == "failed" else (None, compared())
        watch.apply(event("run_done", 61.0, state=ends, error=error, result=result))
    return watch


def searched():
    watch = SweepWatch()
    space = {
        "train.lr": {"low": 0.01, "high": 1.0, "log": True},
        "loss.weight": {"low": 0, "high": 1},
    }
    watch.apply(
        event(
            "sweep_started", 0.0, study="s", spec={"space": space, "trials": 30},
            objectives=["validation_top1"], directions=["maximize"],
        )
    )  # fmt: skip
    for k in range(20):
        values = {"train.lr": 0.01 * (k + 1), "loss.weight": k / 20}
        watch.apply(
            event("trial_started", 1.0 + k, number=k, values=values, why="suggested")
        )
        scores = {"validation_top1": 50.0 + k % 7}
        watch.apply(
            event(
                "trial_done", 1.5 + k, number=k, state="complete", seconds=0.5, ended=k + 1,
                of_trials=30, set=values, values_found=scores,
            )
        )  # fmt: skip
    return watch


def pipeline(width=0.5):
    """Return the watch of a pipeline whose first stage takes so many seconds."""
    watch = Watch()
    watch.apply(event("member_started", 0.0, member="tr/seed0", source="tr", seed=0))
    facts = {"member": "tr/seed0", "of_steps": 9, "samples_per_second": 90.0}
    watch.apply(event("step_logged", 1.0, step=1, loss=1.0, epoch=0, **facts))
    spans = [[0, "teacher", 1, 0.0, width], [1, "block 1", 1, width, 1.0]]
    watch.apply(event("trace_recorded", 2.0, member="tr/seed0", spans=spans))
    return watch


def curves(watches):
    by_key = {
        (*key, label): curve
        for label, watch in watches.items()
        for key, curve in watch.curves.items()
    }
    return dict(sorted(by_key.items(), key=lambda entry: list(PANELS).index(entry[0][0])))


def scene(name):
    """Return (state, curves) of the view."""
    if name == "sweep":
        watch = searched()
        return watch.page({"train.lr": 0.8, "loss.weight": 0.2}), watch.curves
    if name == "pipeline":
        watch = pipeline()
        return live_state.of_run(watch, "r"), curves({"": watch})
    if name == "preparing":
        watch = Watch()
        watch.apply(event("teacher_training", 0.0, epochs=40))
        return live_state.of_run(watch, "r"), curves({"": watch})
    if name == "several":
        both = {"one": trained(), "another": trained("finished")}
        return live_state.of_runs(both), curves(both)
    watch = Watch() if name == "waiting" else trained(None if name == "running" else name)
    return live_state.of_run(watch, "r"), curves({"": watch})


LR = Tunable(name="lr_factor", value=1.0, range=Range(gt=0, le=100))
HEAT = Tunable(name="loss.temperature", value=4.0, range=Range(gt=0))
WEIGHT = Tunable(name="loss.kd_weight", value=0.9, range=Range(ge=0))


def controls(
    step="pause", lr=1.0, teachers=("teacher-0", EVIL), reply=(0, "", ""), undo=""
):
    """Return the controls that the view of a run has."""
    buttons = [step, "checkpoint", "stop", *[BACK] * bool(undo)]
    dials = [dial(LR, lr), dial(HEAT, 4.0), dial(WEIGHT, 0.9)]
    return {"buttons": buttons, "undo": undo, "teachers": list(teachers), "dials": dials,
            "reply": list(reply)}  # fmt: skip


PUSH = """messages => {
    for (const { message, raw } of messages) {
        const bytes = Uint8Array.from(atob(raw), c => c.charCodeAt(0));
        window.hear(message, raw ? [new DataView(bytes.buffer)] : []);
    }
}"""


class Shown:
    """The view of a scene in the page, and what is pushed into it next."""

    def __init__(self, page, name, dark, width):
        self.page, self.sent = page, []
        state, points = scene(name)
        self.widget = LiveWidget("r", "", lambda: None)
        self.widget.send = lambda message, buffers: self.sent.append((message, buffers[0]))
        self.widget.reset(points)
        open_page(page, "live", dark=dark, width=width, height=900)
        run_script(page)
        page.evaluate(
            "messages => { window.play(messages) }", bench.packed(state, self.sent, STRIP)
        )
        page.locator(".kd-blank:visible, .kd-plot:visible").first.wait_for()
        self.sent.clear()
        if name == "running":
            self.push(state, controls=controls(undo="lr_factor = 1"))

    def push(self, state=None, **more):
        """Push what was sent since the last call, and a state."""
        if state is not None:
            self.sent.append(({"kind": "state", "state": state} | more, b""))
        packed = bench.packed({}, self.sent)[1:]
        self.sent.clear()
        self.page.evaluate(PUSH, packed)


@pytest.fixture
def view(sheet):
    """Opens the view of a scene, on a light or a dark page of some width."""

    def show(name, dark=False, width=1280):
        return Shown(sheet, name, dark, width)

    return show


@pytest.fixture
def shown(view):
    """Opens the view of a scene, and returns its page."""
    return lambda *how: view(*how).page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "name",
    ["waiting", "running", "finished", "failed", "several", "sweep", "pipeline"],
)
def test_no_state_shuts_anybody_out(shown, picture, name, dark):
    for width in (1280, 390):
        page = shown(name, dark, width)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.locator(f".kd[data-theme={'dark' if dark else 'light'}]").count() == 1
        violations = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["target"]) for one in violations] == []
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
    assert page.locator(".kd-prediction[data-right=false]").count() == 4
    assert "student after epoch 3" in page.locator(".kd-film .kd-note").inner_text()
    page = shown("failed")
    assert "kdlab resume r" in page.locator(".kd-verdict").inner_text()


def test_a_chart_is_read_zoomed_and_moved_by_keyboard(shown):
    page = shown("running")
    plot = page.locator(".kd-plot").first
    assert "newest: loss 0.5" in plot.get_attribute("aria-label")
    unzoomed = plot.screenshot()
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
    assert plot.screenshot() == unzoomed


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


@pytest.fixture
def settings_changed(view):
    """The view with its controls, and what it has asked for since the last call."""
    live = view("running")

    def asked():
        orders = live.page.evaluate("window.orders.splice(0)")
        return [order for order in orders if order["kind"] == "order"]

    def say(**more):
        live.push(live_state.of_run(trained(), "r"), controls=controls(**more))

    live.asked, live.say = asked, say
    return live


WRITTEN = """() => {
    const all = window.written = [], write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (words, ...at) {
        all.push(words);
        write.call(this, words, ...at);
    };
}"""


def test_a_spike_does_not_flatten_the_curve_and_is_said(view):
    live = view("running")
    live.page.evaluate(WRITTEN)
    live.widget.add(
        [(("loss", "loss", ""), 301.0, 5e6), (("loss", "loss", ""), 302.0, 0.5)]
    )
    live.push()
    until(lambda: "1 beyond: show all" in live.page.evaluate("window.written"))
    assert not {"2M", "4M", "5M"} & set(live.page.evaluate("window.written"))
    live.page.evaluate("window.written.length = 0")
    live.page.get_by_role("button", name="show all").click()
    drawn = live.page.evaluate("window.written")
    assert "4M" in drawn
    assert not [words for words in drawn if "beyond" in words]


def test_machine_and_memory_stand_last_and_folded(view):
    live = view("running")
    live.page.evaluate(WRITTEN)
    watch = trained()
    for cpu in (70.0, 90.0):
        watch.apply(event("machine_used", 62.0, cpu=cpu, memory=1.5, gpus=[(30.0, 4.0)]))
        more = {"member": "served/seed0", "of_steps": 600, "epoch": 3, "loss": 0.5}
        step = watch.now.step + 1
        watch.apply(event("step_logged", 63.0, step=step, samples_per_second=800.0, **more))
    live.widget.reset(curves({"": watch}))
    live.push(live_state.of_run(watch, "r"))
    folded = live.page.locator("details")
    folded.wait_for()
    below = "(a, b) => a.getBoundingClientRect().top > b.getBoundingClientRect().bottom"
    ticker = live.page.locator(".kd-ticker").element_handle()
    assert folded.evaluate(below, ticker)
    assert not folded.locator(".kd-plot").first.is_visible()
    folded.locator("summary").press("Enter")
    folded.locator(".kd-plot").first.wait_for()
    until(lambda: "80" in live.page.evaluate("window.written"))  # of its axis
    labels = folded.locator(".kd-plot").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label'))"
    )
    assert "newest: CPU 90, GPU 0 30" in labels[0]
    assert "newest: processes 1.5, GPU 0 4" in labels[1]


def test_many_checkpoints_are_ticks_at_the_foot(view):
    live, watch = view("running"), trained()
    plot = live.page.locator("canvas.kdlab-curves").first
    above = """canvas => [...canvas.getContext("2d").getImageData(0, 0, canvas.width,
        0.7 * canvas.height).data].filter((v, k) => k % 4 === 3 && v).length"""
    before, drawn = plot.screenshot(), plot.evaluate(above)
    watch.marks.extend(Mark(3 * step, 0.0, "checkpoint", "faint") for step in range(100))
    live.push(live_state.of_run(watch, "r"))
    until(lambda: plot.screenshot() != before)
    assert plot.evaluate(above) == drawn  # curves and their flags are as they were


def test_each_button_is_an_order(settings_changed):
    page = settings_changed.page
    run_buttons = ("pause", "checkpoint", "stop", BACK, "undo: lr_factor = 1")
    for words in (*run_buttons, "add teacher", "drain"):
        page.get_by_role("button", name=words, exact=True).click()
    page.get_by_label("Teacher", exact=True).select_option(EVIL)
    page.get_by_role("button", name="kill").press("Enter")
    orders = [(order["do"], order.get("name")) for order in settings_changed.asked()]
    assert orders == [
        ("pause", None), ("checkpoint", None), ("stop", None), (BACK, None), ("undo", None),
        ("add teacher", "teacher-0"), ("drain", "teacher-0"), ("kill", EVIL),
    ]  # fmt: skip
    pause = page.get_by_role("button", name="pause")
    pause.focus()
    settings_changed.say(step="go on", reply=(1, "bad", f"It is refused: {EVIL}"))
    page.get_by_role("button", name="go on").press("Enter")  # the focus stays on it
    assert [order["do"] for order in settings_changed.asked()] == ["go on"]
    settings_changed.say(reply=(2, "bad", f"It is refused: {EVIL}"))
    assert EVIL in page.locator(".kd-answer").inner_text()
    assert page.get_by_role("button", name="undo").count() == 0


def test_nobody_is_killed_instead_of_a_teacher_that_has_left(settings_changed):
    page = settings_changed.page
    settings_changed.say(teachers=["teacher-7", EVIL])
    assert page.get_by_label("Teacher", exact=True).input_value() == ""
    page.get_by_role("button", name="kill").click()
    assert settings_changed.asked() == [{"kind": "order", "do": "kill", "name": ""}]


def test_a_dial_goes_by_decades_and_asks_when_it_goes_far(settings_changed):
    page = settings_changed.page
    slider = page.get_by_label("lr_factor", exact=True)
    field = page.get_by_label("lr_factor, number")
    assert field.input_value() == "1"
    slider.press("Home")
    slider.press("End")
    assert [one["values"] for one in settings_changed.asked()] == [
        {"lr_factor": 0.01},
        {"lr_factor": 10},
    ]
    field.fill("0.5")
    field.press("Enter")
    assert settings_changed.asked() == [
        {"kind": "order", "do": "set", "values": {"lr_factor": 0.5}}
    ]
    answers = {"keep the old value": [], "set it anyway": [{"lr_factor": 50}]}
    for answer, changes in answers.items():
        field.fill("50")
        field.press("Enter")
        page.get_by_text("lr_factor = 50 is outside 0.01 to 10").wait_for()
        assert settings_changed.asked() == []
        page.get_by_role("button", name=answer).click()
        assert [one["values"] for one in settings_changed.asked()] == changes
    field.fill("-5")  # the run says why not
    field.press("Enter")
    assert [one["values"] for one in settings_changed.asked()] == [{"lr_factor": -5}]
    settings_changed.say(reply=(1, "bad", "must be > 0"))
    assert field.input_value() == "1"
    field.fill("0.2")
    settings_changed.say(reply=(1, "bad", "must be > 0"), teachers=[])
    assert field.input_value() == "0.2"  # what is being typed stays
    settings_changed.say(reply=(1, "bad", "must be > 0"), lr=3.0)  # set by somebody else
    assert field.input_value() == "3"


def test_a_run_that_has_ended_has_no_controls(settings_changed):
    settings_changed.push(
        live_state.of_run(trained("finished"), "r"), controls={"buttons": []}
    )
    assert not settings_changed.page.locator(".kd-controls").is_visible()


def test_what_is_added_is_drawn(view):
    live = view("running")
    plot = live.page.locator("canvas.kdlab-curves").first
    before = plot.screenshot()
    live.widget.add([(("loss", "loss", ""), float(step), 3.0) for step in range(301, 340)])
    live.push()
    until(lambda: plot.screenshot() != before)


@pytest.mark.parametrize(
    ("ends", "state", "words"),
    [
        (None, "running", None),
        ("finished", "finished", None),
        ("failed", "failed", "Failed: <img"),
        ("failed", "failed", "kdlab resume r"),
        ("stopped", "stopped", "Continue: kdlab resume r"),
        ("lost", "lost", "The process ended"),
    ],
)
def test_each_state_of_a_run_is_said(view, ends, state, words):
    live = view("running")
    watch = trained(ends)
    watch.state = state
    live.push(live_state.of_run(watch, "r"))
    live.page.locator(f".kd-state[data-state={state}]").first.wait_for()
    if words is not None:
        assert words in live.page.locator(".kd-verdict").inner_text()


def test_a_finished_run_says_what_came_of_it(shown):
    page = shown("finished")
    rows = [row.inner_text().split("\t") for row in page.locator(".kd-results tr").all()]
    assert rows == [
        ["trained", "seeds", "test %", "teacher %", "exported"],
        ["N-training (no teacher)", "0, 1", "88.50 ± 0.71", "-", ""],
        ["EDL-Dist (served teachers)", "0, 1", "91.50 ± 0.71", "94.25",
         "seed 1"],
    ]  # fmt: skip
    assert "the teacher helped by 3.0 points" in page.locator(".kd-verdict").inner_text()
    assert not shown("running").locator(".kd-results").is_visible()


def test_a_pause_is_a_state_of_its_own(view):
    live, watch = view("running"), trained()
    watch.apply(event("paused", 61.0, step=300))
    live.push(live_state.of_run(watch, "r"))
    live.page.locator(".kd-state[data-state=paused]").first.wait_for()


def test_before_a_student_trains_it_says_what_is_done(view):
    page = view("preparing").page
    assert "training the teacher" in page.locator(".kd-blank").first.inner_text()
    assert "training the teacher" in page.locator(".kd-ticker .kd-list").inner_text()


def test_a_kernel_that_is_gone_is_said_until_another_one_answers(view):
    live = view("running")
    again = 'kdlab.attach("r").live()'
    live.push(live_state.of_run(trained(), "r"), again=again)
    note = live.page.locator(".kd-gone").first
    assert not note.is_visible()
    live.page.evaluate("window.heard['comm_live_update']()")
    note.wait_for()
    assert again in note.inner_text()
    live.widget.reset({})
    live.push()
    note.wait_for(state="hidden")


def test_what_devices_did_is_drawn_anew_with_each_epoch(view):
    live = view("pipeline")
    gantt = live.page.locator(".kd-gantt svg").first
    gantt.wait_for()
    assert gantt.locator("rect").count() >= 2
    before = gantt.inner_html()
    live.push(live_state.of_run(pipeline(0.5), "r"))
    assert gantt.inner_html() == before  # the same spans
    live.push(live_state.of_run(pipeline(0.25), "r"))
    assert gantt.inner_html() != before


def test_a_sweep_shows_its_best_and_fits_into_its_place(view):
    live = view("sweep")
    page = live.page
    assert page.locator(".kd-trials td").count() > 3
    chart, place = page.locator(".kd-parallel svg").first, page.locator("#here")
    drawn, room = chart.bounding_box(), place.bounding_box()
    assert (
        drawn["x"] + drawn["width"] <= room["x"] + room["width"] + 1
    )  # nothing is cut off
    watch = searched()
    watch.apply(event("sweep_done", 99.0, state="stopped"))
    live.push(watch.page({}))
    page.locator(".kd-state", has_text="stopped").first.wait_for()


def test_a_page_to_send_opens_from_a_file_and_asks_nobody(page, elsewhere, picture):
    run = WrittenRun().begin().train(30)
    run.say("check_made", code="KD-D08", result="tip", title="t", found=EVIL, advice="More")
    path = elsewhere / "run.html"
    path.write_text(kdlab.page(run.end().handle))
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.locator(".kd-plot").first.wait_for()
    assert page.locator(".kd-state").first.inner_text() == "finished"
    assert EVIL in page.locator(".kd-checks").inner_text()
    assert not page.locator(".kd-controls").is_visible()
    page.get_by_role("button", name="log scale").click()
    assert page.title() != "broken"
    assert [url for url in asked if not url.startswith("file:")] == []
    picture("page_to_send")
