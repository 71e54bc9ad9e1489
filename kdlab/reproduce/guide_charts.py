"""Charts that help to choose among methods, drawn from simulations and from kept results.

python -m kdlab.reproduce.guide_charts docs/pictures
"""

import sys
from pathlib import Path

from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.report.chart import Panel, svg
from kdlab.reproduce.bars import bar, picture
from kdlab.reproduce.command import kept
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pipe_bd import PipeBd, simulated

# What one would use with several devices, and what the picture calls it.
_PLANS = {"LS": "layer by layer (LS)", "TR+IR": "all on all (IR)", "TR+DPU+AHD": "Pipe-BD"}

_GLOBAL, _LOCAL = "top-1 of the global model, %", "top-1 of a local model, %"
_TAKEN_IN = "MB taken in by each worker"
_LEFT, _PER_POINT, _STEP = 150, 7, 21  # pixels; of a point of accuracy; from bar to bar


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
            Panel(title=f"times data parallel, {where}", curves=curves, across="devices")
            for where, curves in found.items()
        ]
    )


def rivals() -> str:
    """SVG: accuracy of ways of parallel training, best first, and what each takes in."""
    found: dict[str, dict[str, float]] = {}
    for row in kept("ec_dnn/rivals").rows:
        found.setdefault(str(row["row"]), {})[str(row["quantity"])] = row["measured"]
    best = sorted(found.items(), key=lambda named: -named[1][_GLOBAL])
    parts, y = "", 8
    for name, own in best:
        said = (
            f"{own[_GLOBAL]:.1f} %, one local model {own[_LOCAL]:.1f} %, "
            f"{own[_TAKEN_IN]:.1f} MB"
        )
        wide = _PER_POINT * own[_GLOBAL]
        parts += bar(name, said, _LEFT, y, wide, ours=name == "EC-DNN")
        y += _STEP
    note = (
        "Medians: top-1 of the global model; of one local model; what each worker takes in"
    )
    return picture(note, parts, y + 30)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for chart in (pipelines, rivals):
        (folder / f"{chart.__name__}.svg").write_text(chart(), encoding="utf-8")
