"""`kdlab simulate NAME`: a table of the papers or a plan, predicted without the machines."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.report.figures import Figure, Report, figure, report
from kdlab.report.table import text_table
from kdlab.simulate.edl_dist import EdlDist, Outcome, Simulation, in_unit


def simulate(
    name: str, overrides: Sequence[str] = (), say: Callable[[str], None] = lambda line: None
) -> tuple[Report, str]:
    """The figures of a card under registry/simulations, and its table for people.

    Raises:
        NotFoundError: there is no such card; names the nearest.
        SpecError: with every fault of the card.
    """
    clean = name.removeprefix("simulations/")
    spec = construct(EdlDist, loader.compose_card(f"simulations/{clean}", overrides))
    outcomes, seconds = [], []
    for case in spec.cases:
        begin = time.perf_counter()
        outcomes.append(Simulation(spec, case).run())
        seconds.append(time.perf_counter() - begin)
        say(
            f"{case.name}: {outcomes[-1].events} events, {outcomes[-1].simulated_s:.0f} s "
            f"simulated in {seconds[-1]:.1f} s"
        )
    figures = [f for outcome in outcomes for f in _figures(spec, outcome)]
    figures.append(figure("seconds_to_simulate", [sum(seconds)], "s"))
    return report(clean, figures), _table(spec, outcomes)


def _figures(spec: EdlDist, outcome: Outcome) -> list[Figure]:
    case = outcome.case
    value = in_unit(spec, outcome.samples_per_second)
    unit = "days" if spec.unit == "days" else "samples/s"
    figures = [
        figure(f"predicted/{case.name}", [value], unit),
        figure(f"teachers_used/{case.name}", [outcome.teachers_used], "teachers"),
        figure(
            f"volume_over_ut_max/{case.name}", [outcome.volume_over_ut], "ratio", "<= 1"
        ),
        figure(f"samples_lost/{case.name}", [outcome.lost], "samples", "<= 0"),
        figure(f"samples_repeated/{case.name}", [outcome.repeated], "samples", "<= 0"),
    ]
    if case.published is not None:
        ratio = value / case.published
        figures.append(figure(f"published/{case.name}", [case.published], unit))
        figures.append(figure(f"predicted_over_published/{case.name}", [ratio], "ratio"))
    return figures


def _table(spec: EdlDist, outcomes: Sequence[Outcome]) -> str:
    unit = "days" if spec.unit == "days" else "samples/s"
    head = ["case", "students", "teachers", "used", f"predicted {unit}", "published"]
    head += ["ratio", "online", "volume/ut", "asked", "re-sent", "lost/repeated"]
    rows = []
    for outcome in outcomes:
        case, value = outcome.case, in_unit(spec, outcome.samples_per_second)
        ratio = None if case.published is None else value / case.published
        rows.append(
            [
                case.name,
                str(case.students),
                str(case.teachers),
                str(outcome.teachers_used),
                f"{value:.4g}",
                _or_dash(case.published),
                _or_dash(ratio),
                _or_dash(case.online),
                f"{outcome.volume_over_ut:.2f}",
                str(outcome.asked),
                str(outcome.resends),
                f"{outcome.lost}/{outcome.repeated}",
            ]
        )
    note = f"\nCalibration: {spec.calibration.strip()}" if spec.calibration else ""
    return text_table(head, rows) + note


def _or_dash(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
