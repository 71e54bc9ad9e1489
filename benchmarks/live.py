"""Costs of watching a run: in samples/s of the run, and in time of the page's main thread.

The same run is watched and left alone in turns; the monitor is that of a notebook, its page is
left out, since on a cluster it is on another machine. The page is measured by itself: Chromium
draws the curves of a run of two hours (36,000 steps) while ten updates a second arrive, and
says how long its main thread was busy.
"""

import base64
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness import (
    check_goes_on,
    going,
    in_turns,
    quiet,
    report,
    runs_apart,
    steps_of,
    until,
)
from kdlab.errors import ClusterError
from kdlab.events.log import EventReader
from kdlab.events.runs import MemberStarted
from kdlab.events.training import StepLogged
from kdlab.notebook.live_state import of_run
from kdlab.notebook.live_widget import LiveWidget, script, style
from kdlab.notebook.monitor import Monitor
from kdlab.notebook.watch import Watch
from kdlab.report.figures import EmitLine, Figure, Report, figure, over
from kdlab.run.experiment import load
from kdlab.run.handle.run import Run

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession

_SLICE_S = 4.0
_STEPS = 36_000  # two hours at five a second
_HZ = 10
_TICK_S = 5.0  # at the page


def measure(repeats: int = 8, say: EmitLine = quiet) -> Report:
    """All figures; those of the page only where Chromium and playwright are."""
    ratios, sizes = _watched(repeats, say)
    figures = [
        figure("samples_per_second_with_over_without", ratios, "ratio"),
        figure("bytes_per_update", sizes, "bytes"),
    ]
    return report("live", figures + _page(say))


# The run


def _watched(repeats: int, say: EmitLine) -> tuple[list[float], list[float]]:
    options = {"compare": ["none"], "train.epochs": 1_000_000, "tracking.enabled": False}
    sizes = list[float]()
    with runs_apart(), going(load("quickstart", options)) as run:
        read = EventReader(run.folder.events)
        until(lambda: bool(steps_of(run)), tick_s=0.1)
        works = {
            "alone": lambda: _slice(run, read, None),
            "watched": lambda: _slice(run, read, sizes),
        }
        rates = in_turns(works, repeats, say, "samples/s")
    return over(rates["watched"], rates["alone"]), sizes


def _slice(run: Run, read: EventReader, sizes: list[float] | None) -> float:
    """Measure samples/s over a few seconds."""
    monitor = None
    if sizes is not None:
        monitor = Monitor(run, hz=_HZ)
        monitor.page.send = _counting(sizes)
        monitor.follow()
    read()  # what was before
    time.sleep(_SLICE_S)
    steps = [event for event in read() if isinstance(event, StepLogged)]
    if monitor is not None:
        monitor.close()
    check_goes_on(run)
    if len(steps) < 2:
        raise ClusterError(
            f"{run.path} logged {len(steps)} steps in {_SLICE_S:g} s, see {run.folder.log}"
        )
    first, last = steps[0], steps[-1]
    return (last.samples_seen - first.samples_seen) / (last.time - first.time)


def _counting(sizes: list[float]) -> Callable[..., None]:
    def send(message: Mapping[str, object], buffers: list[bytes]) -> None:
        if message["kind"] == "add":
            sizes.append(float(len(json.dumps(message)) + sum(map(len, buffers))))

    return send


# The page


def _page(say: EmitLine) -> list[Figure]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        say("no page was measured: it needs Chromium and playwright")
        return []
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.set_content("<div id=here></div>")
        page.add_style_tag(content=style())
        page.evaluate(_HARNESS, script())
        messages, history_bytes = _messages()
        page.evaluate("messages => window.play(messages)", messages)
        page.wait_for_timeout(1000)
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable")
        busy = []
        for _ in range(3):
            before = _metrics(tools)
            page.wait_for_timeout(1000 * _TICK_S)
            after = _metrics(tools)
            taken = after["TaskDuration"] - before["TaskDuration"]
            busy.append(1e3 * taken / (after["Timestamp"] - before["Timestamp"]))
        drawn = page.evaluate("window.updates")
        browser.close()
    say(f"the page was busy {median(busy):.1f} ms of a second, {drawn} updates were drawn")
    return [
        figure("browser_ms_per_s", busy, "ms"),
        figure("bytes_of_whole_history", float(history_bytes), "bytes"),
    ]


def _metrics(tools: "CDPSession") -> dict[str, float]:
    metrics = tools.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: float(metric["value"]) for metric in metrics}


def _messages() -> tuple[list[dict[str, object]], int]:
    """Return messages of the widget, the whole history of a long run first, and its bytes."""
    sent: list[tuple[Mapping[str, object], bytes]] = []
    watch = Watch()
    widget = LiveWidget("bench", "", lambda: None)
    widget.send = lambda message, buffers: sent.append((message, buffers[0]))
    watch.apply(MemberStarted(member="served/seed0", source="served", seed=0))
    for step in range(_STEPS):
        watch.apply(_step(step))
    watch.take_news()
    widget.reset({(*key, ""): curve for key, curve in watch.curves.items()})
    first = of_run(watch, "bench")
    for step in range(_STEPS, _STEPS + int(_HZ * (3 * _TICK_S + 20))):
        watch.apply(_step(step))
        widget.add([((panel, name, ""), x, y) for panel, name, x, y in watch.take_news()])
        if step % (_HZ // 2) == 0:  # as the monitor does, twice a second
            sent.append(({"kind": "state", "state": of_run(watch, "bench")}, b""))
    return packed(first, sent), len(json.dumps(sent[0][0])) + len(sent[0][1])


def packed(
    state: Mapping[str, object],
    sent: Sequence[tuple[Mapping[str, object], bytes]],
    strip: str = "",
) -> list[dict[str, object]]:
    """A state and what was sent after it, as the page's clock takes them."""
    first = ({"kind": "state", "state": state, "strip": strip}, b"")
    return [
        {"message": message, "raw": base64.b64encode(raw).decode()}
        for message, raw in (first, *sent)
    ]


def _step(step: int) -> StepLogged:
    return StepLogged(
        time=step / 5,
        member="served/seed0",
        epoch=step // 100,
        step=step,
        of_steps=2 * _STEPS,
        loss=2 + (step % 17) / 10,
        lr=0.1,
        samples_per_second=900.0 + step % 91,
        samples_seen=64 * step,
        figures={"volume": 1000.0 + step % 777},
    )


# A model as anywidget gives it to a view, and a clock that plays what was recorded.
_HARNESS = """async source => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const view = (await import(url)).default;
    const heard = window.heard = {}, orders = window.orders = [], kept = { ...window.first };
    const model = {
      on: (name, call) => { heard[name] = call; }, off: () => {}, send: said => orders.push(said),
      get: name => kept[name],
    };
    window.hear = (message, buffers) => {
        if (message.kind !== "state") return heard["msg:custom"](message, buffers);
        Object.assign(kept, message);
        for (const name of Object.keys(message)) heard[`change:${name}`]?.();
    };
    view.render({ model, el: document.getElementById("here") });
    window.updates = 0;
    const bytes = raw => Uint8Array.from(atob(raw), c => c.charCodeAt(0));
    window.play = messages => {
        const ready = messages.map(({ message, raw }) =>
            [message, raw ? [new DataView(bytes(raw).buffer)] : []]);
        window.hear(...ready.shift());
        window.hear(...ready.shift());
        setInterval(() => {
            while (ready.length && ready[0][0].kind === "state") window.hear(...ready.shift());
            if (ready.length) { window.hear(...ready.shift()); window.updates += 1; }
        }, 100);
    };
}"""
