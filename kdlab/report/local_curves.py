"""Plots of EC-DNN and its baselines, as in the paper's Figs 1 to 4."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kdlab.report.round_errors import RoundErrors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORSE, _BETTER = "#c0392b", "#2471a3"  # than the local models' mean


def local_curves(looks: Sequence[RoundErrors], folder: Path, title: str) -> None:
    """Write curves.png (Fig. 4) and histograms.png (Figs 1 to 3)."""
    _curves(looks, folder / "curves.png", title)
    _histograms(looks, folder / "histograms.png", title)


def _curves(looks: Sequence[RoundErrors], path: Path, title: str) -> None:
    from matplotlib.figure import Figure  # 1 s

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    seconds = [look.parallel_s for look in looks]
    for k in range(max(len(look.locals) for look in looks)):
        line = [(look.parallel_s, look.locals[k]) for look in looks if k < len(look.locals)]
        axes.plot(*zip(*line, strict=True), color="0.8", linewidth=1)
    axes.plot(seconds, [look.chosen for look in looks], label="local model (_L)")
    axes.plot(seconds, [look.global_ for look in looks], label="global model (_G)")
    axes.set_xlabel("overall time on machines side by side, s")
    axes.set_ylabel("test error, %")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=120)


def _histograms(looks: Sequence[RoundErrors], path: Path, title: str) -> None:
    from matplotlib.figure import Figure  # 1 s

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    ends = [look.diff_lg for look in looks]
    _bars(left, ends, "Diff_LG: locals minus global, points")
    compressed = [d for look in looks if (d := look.diff_lc) is not None]
    _bars(right, compressed, "Diff_LC: locals minus compressed, points")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _bars(axes: "Axes", values: Sequence[float], label: str) -> None:
    axes.set_xlabel(label)
    axes.set_ylabel("communications")
    if not values:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
        return
    widest = max(1e-3, *map(abs, values))
    edges = [widest * (k / 10 - 1) for k in range(21)]
    axes.hist(values, bins=edges)
    for bar, start in zip(axes.patches, edges, strict=False):
        bar.set_color(_WORSE if start < -1e-12 else _BETTER)
    axes.axvline(0, color="0.3", linewidth=1)
