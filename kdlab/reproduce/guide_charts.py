"""Charts that help to choose among methods, drawn from simulations.

python -m kdlab.reproduce.guide_charts docs/pictures
"""

import sys
from pathlib import Path

from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.report.chart import Panel, svg
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pipe_bd import PipeBd, simulated

# What one would use with several devices, and what the picture calls it.
_PLANS = {"LS": "layer by layer (LS)", "TR+IR": "all on all (IR)", "TR+DPU+AHD": "Pipe-BD"}


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
    Path(sys.argv[1], "pipelines.svg").write_text(pipelines(), encoding="utf-8")
