"""Charts that help to choose among methods, drawn from kept results and simulations.

python -m kdlab.reproduce.guide_charts docs/pictures
"""

import sys
from pathlib import Path

from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.report.chart import Panel, svg
from kdlab.reproduce.bars import bar, picture, title
from kdlab.reproduce.command import kept
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pipe_bd import PipeBd, simulated

_LEFT, _LONGEST, _STEP = 150, 420, 19  # pixels
_TOP1 = "top-1 of the global model, %"
_BYTES = "MB taken in by each worker"
_BASELINES = ("S-DNN, one worker", "E-DNN")
# What one would use with several devices, and what the picture calls it.
_PLANS = {"LS": "layer by layer (LS)", "TR+IR": "all on all (IR)", "TR+DPU+AHD": "Pipe-BD"}


def rivals() -> str:
    """SVG: accuracy of the global model of each way of parallel training, and what it sent."""
    rows = kept("ec_dnn/rivals").rows
    top1 = {r["row"]: float(r["mean"]) for r in rows if r["quantity"] == _TOP1}
    sent = {r["row"]: float(r["mean"]) for r in rows if r["quantity"] == _BYTES}
    least = min(top1.values())
    base = max(0.0, least - 5)  # differences are small: bars begin a little below the least
    parts, y = title(f"Top-1 of the global model, % (bars begin at {base:.0f})", 0, 20), 34
    for name, value in sorted(top1.items(), key=lambda item: -item[1]):
        wide = _LONGEST * (value - base) / (max(top1.values()) - base)
        number = f"{value:.1f}   {sent[name]:,.1f} MB"
        parts += bar(name, number, _LEFT, y, wide, ours=name not in _BASELINES)
        y += _STEP
    note = (
        "Four workers, the same local iterations; megabytes are what each worker took in."
    )
    return picture(note, parts, y + 26)


def pipelines() -> str:
    """SVG: what devices bring blockwise distillation, over data parallel, by simulation."""
    card = loader.compose_card("simulations/pipe_bd/scale64", [])
    spec = construct(SimulationSpec, card)
    assert isinstance(spec, PipeBd)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case in spec.cases:
        outcome = simulated(spec, case)
        panel = found.setdefault(case.name.partition(" ")[2], {})
        for variant, words in _PLANS.items():
            times = outcome.over_dp(variant)
            if times is not None:
                panel.setdefault(words, []).append((float(len(case.devices)), times))
    return svg(
        [
            Panel(
                title=f"times data parallel, {where}",
                curves=curves,
                across="devices",
            )
            for where, curves in found.items()
        ]
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "rivals.svg").write_text(rivals(), encoding="utf-8")
    (folder / "pipelines.svg").write_text(pipelines(), encoding="utf-8")
