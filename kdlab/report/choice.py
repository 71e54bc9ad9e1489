"""Candidates for blocks with their costs and the choice, as a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kdlab.report.table import text_table

_SIZE = (9.0, 4.2)  # inches


class _Option(Protocol):
    @property
    def block(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def latency_ms(self) -> float: ...
    @property
    def parameters(self) -> int: ...


def choice_table(options: Sequence[_Option], chosen: Sequence[_Option]) -> str:
    """Return a table of all options; the choice of each block is marked."""
    rows = [
        [
            str(option.block),
            option.name,
            f"{option.score:.4f}",
            f"{option.latency_ms:.3f}",
            f"{option.parameters:,}",
            "chosen" if option in chosen else "",
        ]
        for option in options
    ]
    head = ("block", "as", "answers move, nats", "ms on a core", "parameters", "")
    total = sum(option.latency_ms for option in chosen)
    return (
        f"{text_table(head, rows)}\n"
        f"chosen: {', '.join(option.name for option in chosen)}; {total:.3f} ms by its parts"
    )


def choice_picture(
    options: Sequence[_Option],
    chosen: Sequence[_Option],
    frontier: Sequence[tuple[float, float]],
    path: Path,
) -> None:
    """Plot scores of all options and the best score for each time budget."""
    from matplotlib.figure import Figure  # 1 s

    picture = Figure(figsize=_SIZE, layout="constrained")
    left, right = picture.subplots(1, 2)
    blocks = sorted({option.block for option in options})
    names = list(dict.fromkeys(option.name for option in options))
    floor = min((o.score for o in options if o.score > 0), default=1e-6) / 3
    for name in names:
        same = [o for o in options if o.name == name]
        left.plot(
            [o.block for o in same], [max(o.score, floor) for o in same], "o", label=name
        )
    left.plot(
        [o.block for o in chosen],
        [max(o.score, floor) for o in chosen],
        "o",
        markersize=13,
        markerfacecolor="none",
        markeredgecolor="black",
        label="chosen",
    )
    left.set_yscale("log")
    left.set_xticks(blocks)
    left.set_xlabel("block")
    left.set_ylabel("answers move, nats")
    left.set_title("each stand-in alone", fontsize="medium")
    right.plot([ms for ms, _ in frontier], [score for _, score in frontier], "o-")
    choice = sum(o.latency_ms for o in chosen), sum(o.score for o in chosen)
    right.plot(*choice, "ko", markersize=13, markerfacecolor="none")
    right.set_xlabel("ms of an image on one core, by parts")
    right.set_ylabel("sum of the scores, nats")
    right.set_title("the best choice for each budget", fontsize="medium")
    handles = left.get_legend_handles_labels()
    picture.legend(*handles, loc="outside lower center", ncols=4)
    picture.savefig(path, dpi=120)
