"""Pictures of the README and the docs, drawn from kept results and from simulations.

python -m benchmarks.reproduce.charts docs/pictures
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.reproduce.command import kept_result
from benchmarks.reproduce.freshness import changed_since
from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.report.bars import bar, svg_document, title
from kdlab.report.chart import Panel, svg
from kdlab.report.verdict_picture import three_bars
from kdlab.simulate.edl_dist import EdlDist
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pipe_bd import PipeBd, simulate_case
from kdlab.simulate.pool_simulation import Simulation

# Plans for several devices, each with its name in the picture.
_PLANS = {"LS": "layer by layer (LS)", "TR+IR": "all on all (IR)", "TR+DPU+AHD": "Pipe-BD"}

_GLOBAL, _LOCAL = "top-1 of the global model, %", "top-1 of a local model, %"
_TAKEN_IN = "MB taken in by each worker"
_LEFT, _PER_POINT, _STEP = 150, 7, 21  # pixels: left of bars, per point, from bar to bar

# Curves of EC-DNN's Table 1, with their names in the picture.
_CURVES = {"ec": "EC-DNN", "e": "E-DNN", "ma": "MA-DNN", "s": "S-DNN"}

_STORM_LEFT, _STORM_WIDE = 220, 330  # pixels
_PLACING, _PLACING_S = "simulations/edl_dist/placing", 5.0
_HUES = ("#2f6fb3", "#c0632b", "#3d8b57", "#8a4fa3", "#b0892c", "#4b5d73")  # of batches

# Titles above the bars of the storm, and how the names of the rows end in its card.
_WEATHERS = {
    "no failure": ", no failure",
    "a failure each 45 s": ", a failure each 45 s",
    "a failure each 15 s": ", a failure each 15 s",
}
_WAYS = {
    "kdlab": "kdlab, served teachers",
    "torchrun": "torchrun, from checkpoints",
    "torchft": "torchft, two replicas",
}
# Pixels of engines: left of the bars, of a bar as fast as eager, from bar to bar.
_ENGINES_LEFT, _SCALE, _ENGINES_STEP = 190, 150, 19
_TIMES_EAGER = "times eager"


def picture(note: str, parts: str, tall: int, *results: str) -> str:
    """Return an SVG of this height, with a note below its parts.

    Parts that show kept `results` whose code has changed since are pale, and the note says so.
    """
    if any(changed_since(kept_result(name)) for name in results):
        note += " Measured before the code changed."
        parts = f'<g opacity="0.55">{parts}</g>'
    return svg_document(note, parts, tall)


def _numbers(name: str, field: str = "measured") -> dict[str, dict[str, Any]]:
    """Numbers of a kept result, by quantity and by row."""
    numbers: dict[str, dict[str, Any]] = {}
    for row in kept_result(name)["rows"]:
        numbers.setdefault(row["quantity"], {})[row["row"]] = row[field]
    return numbers


def headline() -> str:
    """SVG: top-1 of a student without its teacher, with it, and of the teacher."""
    top1 = _numbers("demo", "mean")["top-1, %"]
    drawn, tall = three_bars(
        "Right answers on 641 test photos, 20 labels a class",
        top1["alone"],
        top1["with its teacher"],
        top1["teacher"],
        "Mean of three seeds; the teacher answers from other processes, one of which is killed.",
    )
    return picture("", drawn, tall, "demo")


def engines() -> str:
    """SVG: for each network a bar for each engine, in the order of the card."""
    parts, y, last = "", 8, ""
    for row, times in _numbers("engines")[_TIMES_EAGER].items():
        network, _, engine = row.partition(", ")
        if network != last:
            y += 10 * bool(last)
            parts += title(network, 0, y + 16)
            y, last = y + 24, network
        number = "refused, or not tried" if times is None else f"{times:.2f}"
        wide, ours = _SCALE * (times or 0.0), engine != "eager fp32"
        parts += bar(engine, number, _ENGINES_LEFT, y, wide, ours=ours)
        y += _ENGINES_STEP
    note = "Labels a second on one core, times those of PyTorch as it is"
    return picture(note, parts, y + 34, "engines")


def pipelines() -> str:
    """SVG: simulated speed of blockwise distillation over data parallel, by number of devices."""
    card = loader.compose_card("simulations/pipe_bd/scale64", [])
    spec = construct(SimulationSpec, card)
    assert isinstance(spec, PipeBd)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case in spec.cases:
        outcome = simulate_case(spec, case)
        panel = panels.setdefault(case.name.partition(" ")[2], {})
        for variant, words in _PLANS.items():
            times = outcome.over_dp(variant)
            if times is not None:
                panel.setdefault(words, []).append((float(len(case.devices)), times))
    return svg(
        [
            Panel(title=f"times data parallel, {where}", curves=curves, across="devices")
            for where, curves in panels.items()
        ]
    )


def rivals() -> str:
    """SVG: accuracy of methods of parallel training, best first, and the MB each receives."""
    local, taken_in = (_numbers("ec_dnn/rivals")[kind] for kind in (_LOCAL, _TAKEN_IN))
    labels = {
        name: f", one local model {local[name]:.1f} %, {taken_in[name]:.1f} MB"
        for name in local
    }
    return _best_first(
        "ec_dnn/rivals",
        labels,
        "Medians: top-1 of the global model; of one local model; what each worker takes in",
    )


def rivals_tuned() -> str:
    """SVG: the same, each with its best setting, and its best one at equal bytes."""
    numbers = _numbers("ec_dnn/rivals_tuned")
    equal = numbers["top-1 of the global model at equal bytes, %"]
    labels = {name: f", {mb:.1f} MB" for name, mb in numbers[_TAKEN_IN].items()}
    labels |= {
        name: f"{labels[name]}; {top1:.1f} %"
        for name, top1 in equal.items()
        if top1 is not None
    }
    return _best_first(
        "ec_dnn/rivals_tuned",
        labels,
        "Medians: top-1 of the global model, MB that each worker takes in; top-1 at equal bytes",
    )


def _best_first(name: str, labels: Mapping[str, str], note: str) -> str:
    """Bars of the global models' top-1; a label stands behind the number."""
    parts, y = "", 8
    numbers = _numbers(name)[_GLOBAL]
    for method, top1 in sorted(numbers.items(), key=lambda named: -named[1]):
        label = f"{top1:.1f} %{labels[method]}"
        parts += bar(method, label, _LEFT, y, _PER_POINT * top1, ours=method == "EC-DNN")
        y += _STEP
    return picture(note, parts, y + 30, name)


def ec_dnn_curves() -> str:
    """SVG: test error of EC-DNN and its rivals over seconds, means of the seeds."""
    result, panels = kept_result("ec_dnn/table1"), []
    seen = result["curves"]
    late = ", measured before the code changed" if changed_since(result) else ""
    for of, models in (("g", "the global model"), ("l", "a local model")):
        curves = {
            words: [
                (fmean(x for x, _ in points), fmean(y for _, y in points))
                for points in zip(*seen[f"{key}_{of}"], strict=True)
            ]
            for key, words in _CURVES.items()
        }
        title = f"Test error of {models}, %{late}"
        panels.append(Panel(title, curves, across="seconds on machines side by side"))
    return svg(panels)


def storm() -> str:
    """SVG: seconds to 3,000 steps without and with failures, and the samples they cost."""
    numbers = _numbers("storm")
    seconds = numbers["seconds to 3000 steps"]
    parts, y = "", 0
    for words, end in _WEATHERS.items():
        parts += title(words, 0, y + 20)
        y += 32
        for way, name in _WAYS.items():
            took = seconds[way + end]
            label = f"{took:,.0f} s"
            if lost := numbers["samples lost"].get(way + end):
                label += f", {lost:,.0f} samples lost"
            if twice := numbers["samples trained on twice"].get(way + end):
                label += f", {twice:,.0f} trained on twice"
            wide = _STORM_WIDE * took / max(seconds.values())
            parts += bar(name, label, _STORM_LEFT, y, wide, ours=way == "kdlab")
            y += _STEP
        y += 8
    note = "Seconds to 3,000 steps. Half of kdlab's failures are teachers, all others are ranks."
    return picture(note, parts, y + 26, "storm")


class _RecordedSimulation(Simulation):
    """Records when each teacher computes which batch."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.work: list[tuple[str, int, float, float]] = []

    def _ask(
        self, student: Any, part: Part, address: str, *others: Any, **more: Any
    ) -> None:
        teacher = self.teachers[address]
        begin = max(teacher.free_at, self.clock.now + self.spec.latency_s)
        super()._ask(student, part, address, *others, **more)
        self.work.append((address, part.batch, begin, teacher.free_at))


def placing() -> str:
    """SVG: what each of two quick and four slow teachers computes in the first seconds."""
    spec = construct(SimulationSpec, loader.compose_card(_PLACING, []))
    assert isinstance(spec, EdlDist)
    simulation = _RecordedSimulation(spec, spec.cases[0])
    simulation.run()
    rates = {a: teacher.t_t for a, teacher in simulation.teachers.items()}
    parts, places = "", {address: 26 + 30 * row for row, address in enumerate(rates)}
    for address, y in places.items():
        parts += bar(f"{rates[address]:g} samples/s", "", 120, y, 0, tall=24)
    for address, batch, begin, end in simulation.work:
        if begin < _PLACING_S:
            x, wide = 120 + 140 * begin, 140 * (min(end, _PLACING_S) - begin)
            colour = _HUES[batch % len(_HUES)]
            parts += (
                f'<rect x="{x:.1f}" y="{places[address]}" width="{wide:.1f}" height="24" rx="2" '
                f'fill="{colour}" stroke="white"/>'
            )
            if wide > 18:
                parts += (
                    f'<text x="{x + 4:.1f}" y="{places[address] + 16}" fill="white" '
                    f'font-size="11">{batch}</text>'
                )
    note = "Each bar is a part, with the number of its batch; a batch is trained on in this order."
    return picture(note, parts, 26 + 30 * len(places) + 30)


CHARTS = (ec_dnn_curves, engines, headline, pipelines, placing, rivals, rivals_tuned, storm)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for chart in CHARTS:
        (folder / f"{chart.__name__}.svg").write_text(chart(), encoding="utf-8")
