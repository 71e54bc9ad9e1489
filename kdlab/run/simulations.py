"""`kdlab simulate NAME`: predict a table of the papers, or a plan, without the machines."""

import time
from collections.abc import Callable, Iterator, Sequence

from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.papers.pipe_bd.stages import Plan
from kdlab.report.figures import Figure, Report, figure, report
from kdlab.report.table import number, text_table
from kdlab.simulate import ec_dnn, pipe_bd
from kdlab.simulate.ec_dnn import EcDnn
from kdlab.simulate.edl_dist import EdlDist, in_unit
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pipe_bd import PipeBd
from kdlab.simulate.pool_simulation import PoolOutcome, Simulation


def simulate(
    name: str, overrides: Sequence[str] = (), say: Callable[[str], None] = lambda line: None
) -> tuple[Report, str]:
    """Return the figures of a card under registry/simulations, and its text table.

    Raises:
        NotFoundError: no such card; names the nearest.
        SpecError: the card has faults; lists each.
    """
    clean = name.removeprefix("simulations/")
    spec = construct(SimulationSpec, loader.compose_card(f"simulations/{clean}", overrides))
    begin = time.perf_counter()
    if isinstance(spec, PipeBd):
        figures, table = _pipe_bd(spec, say)
    elif isinstance(spec, EcDnn):
        figures, table = _ec_dnn(spec, say)
    else:
        assert isinstance(spec, EdlDist)
        figures, table = _edl_dist(spec, say)
    figures.append(figure("seconds_to_simulate", [time.perf_counter() - begin], "s"))
    note = f"\nCalibration: {spec.calibration.strip()}" if spec.calibration else ""
    return report(clean, figures), table + note


# EDL-Dist


def _edl_dist(spec: EdlDist, say: Callable[[str], None]) -> tuple[list[Figure], str]:
    outcomes = []
    for case in spec.cases:
        begin = time.perf_counter()
        outcome = Simulation(spec, case).run()
        outcomes.append(outcome)
        say(
            f"{case.name}: {outcome.events} events, {outcome.simulated_s:.0f} s "
            f"simulated in {time.perf_counter() - begin:.1f} s"
        )
    return [f for o in outcomes for f in _figures(spec, o)], _table(spec, outcomes)


def _figures(spec: EdlDist, outcome: PoolOutcome) -> list[Figure]:
    case, value = outcome.case, in_unit(spec, outcome.samples_per_second)
    unit = "days" if spec.unit == "days" else "samples/s"
    # A student is at most as fast as all its teachers.
    reach = outcome.samples_per_second / min(outcome.demand, outcome.capacity)
    bound = "<= 1" if spec.policy == "guarded" else None
    rows: list[tuple[str, float, str, str | None]] = [
        ("predicted", value, unit, None),
        ("teachers_used", outcome.teachers_used, "teachers", None),
        ("volume_over_ut_max", outcome.volume_over_ut, "ratio", None),
        ("volume_over_bound_max", outcome.volume_over_bound, "ratio", bound),
        ("rate_over_reach", reach, "ratio", None),
        ("teachers_held_over_needed", outcome.held_over_needed, "ratio", None),
        ("settle_s", outcome.settle_s, "s", None),
        ("released_in_vain", outcome.released_in_vain, "teachers", None),
        ("samples_lost", outcome.lost, "samples", "<= 0"),
        ("samples_repeated", outcome.repeated, "samples", "<= 0"),
    ]
    if case.published is not None:
        # Only predictions are evidence: the others are inputs, or follow from them.
        ratio = f"{case.evidence}_over_published"
        rows.append(("published", case.published, unit, None))
        rows.append((ratio, value / case.published, "ratio", None))
    return [figure(f"{name}/{case.name}", [v], of, goal) for name, v, of, goal in rows]


def _table(spec: EdlDist, outcomes: Sequence[PoolOutcome]) -> str:
    unit = "days" if spec.unit == "days" else "samples/s"
    head = ["case", "students", "teachers", "used", f"simulated {unit}", "evidence"]
    head += [
        "published",
        "ratio",
        "online",
        "volume/ut",
        "asked",
        "re-sent",
        "lost/repeated",
    ]
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
                case.evidence,
                number(case.published),
                number(ratio),
                number(case.online),
                f"{outcome.volume_over_ut:.2f}",
                str(outcome.asked),
                str(outcome.resends),
                f"{outcome.lost}/{outcome.repeated}",
            ]
        )
    return text_table(head, rows)


# Pipe-BD


def _pipe_bd(spec: PipeBd, say: Callable[[str], None]) -> tuple[list[Figure], str]:
    outcomes = []
    for case in spec.cases:
        outcomes.append(pipe_bd.simulate_case(spec, case))
        say(f"{case.name}: {outcomes[-1].looked_at} plans or stages looked at")
    figures = [f for o in outcomes for f in _pipe_figures(o)]
    return figures + [f for c in spec.cases for f in _ranges(spec, c)], _pipe_table(
        outcomes
    )


def _ranges(spec: PipeBd, case: pipe_bd.PipelineCase) -> Iterator[Figure]:
    """Lowest and highest ratios over the other fitted profiles of a case."""
    every = [pipe_bd.simulate_case(spec, fitted) for fitted in case.fitted()]
    for baseline in _published(every[0]) if every else ():
        ratios = sorted(_ratio(outcome, baseline) for outcome in every)
        label = f"pipe_bd_over_{baseline}/{case.name}"
        yield figure(f"lowest/{label}", ratios[0], "times")
        yield figure(f"highest/{label}", ratios[-1], "times")


def _pipe_figures(outcome: pipe_bd.PipelineOutcome) -> list[Figure]:
    case = outcome.case
    figures = [figure(f"ideal_ms/{case.name}", [1000 * outcome.ideal_s], "ms")]
    for variant, seconds in outcome.seconds.items():
        if seconds is None:
            continue
        label = f"{variant}/{case.name}"
        figures.append(figure(f"step_ms/{label}", [1000 * seconds], "ms"))
        figures.append(figure(f"over_dp/{label}", [outcome.over_dp(variant) or 0], "times"))
        figures.append(figure(f"of_ideal/{label}", [outcome.ideal_s / seconds], "ratio"))
    for stage in outcome.plan.stages:
        for block in stage.blocks:
            label = f"devices_of_block/{case.name}/{block}"
            figures.append(figure(label, [len(stage.devices)], "devices"))
    for baseline, ours in _published(outcome).items():
        predicted = _ratio(outcome, baseline)
        label = f"pipe_bd_over_{baseline}/{case.name}"
        figures.append(figure(f"predicted/{label}", [predicted], "times"))
        figures.append(figure(f"published/{label}", [ours], "times"))
        ratio = figure(f"predicted_over_published/{label}", [predicted / ours], "ratio")
        figures.append(ratio)
    return figures


def _published(outcome: pipe_bd.PipelineOutcome) -> dict[str, float]:
    """Speedup of Pipe-BD over each baseline in the paper."""
    times = dict(outcome.case.published)
    ours = times.pop("pipe_bd", None)
    return {} if ours is None else {name: value / ours for name, value in times.items()}


def _ratio(outcome: pipe_bd.PipelineOutcome, baseline: str) -> float:
    ours, theirs = outcome.seconds["TR+DPU+AHD"], outcome.seconds[baseline.upper()]
    assert ours is not None
    assert theirs is not None
    return theirs / ours


def _pipe_table(outcomes: Sequence[pipe_bd.PipelineOutcome]) -> str:
    head = ["case", "devices", "variant", "ms per step", "over DP", "of ideal", "published"]
    rows, plans = [], []
    for outcome in outcomes:
        published = _published(outcome)
        for variant, seconds in outcome.seconds.items():
            if seconds is None:
                continue
            key = variant.lower()
            speedup = published.get("dp") if variant == "TR+DPU+AHD" else None
            if key in published and "dp" in published:
                speedup = published["dp"] / published[key]
            rows.append(
                [
                    outcome.case.name,
                    str(len(outcome.case.devices)),
                    variant,
                    f"{1000 * seconds:.4g}",
                    number(outcome.over_dp(variant)),
                    f"{outcome.ideal_s / seconds:.3g}",
                    number(speedup),
                ]
            )
        plans.append(
            f"{outcome.case.name}: {described(outcome.plan, len(outcome.case.devices))}"
        )
    return "\n".join([text_table(head, rows), "", "Plans of TR+DPU+AHD:", *plans])


def described(plan: Plan, devices: int) -> str:
    """Format a plan on one line: which blocks on which devices."""
    idle = sorted({*range(devices)} - {*plan.devices})
    return "blocks " + ", ".join(
        [
            *(
                f"{_span(s.first, s.stop - 1)} on {_span(s.devices[0], s.devices[-1])}"
                for s in plan.stages
            ),
            *(f"device {device} idle" for device in idle),
        ]
    )


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


# EC-DNN


_PARTS = ("train", "communication", "relabel", "compress")


def _ec_dnn(spec: EcDnn, say: Callable[[str], None]) -> tuple[list[Figure], str]:
    outcomes, figures, rows = [], list[Figure](), []
    for case in spec.cases:
        outcome = ec_dnn.simulate_case(case)
        outcomes.append(outcome)
        say(f"{case.name}: {outcome.rounds} rounds, {outcome.events} events")
    first = outcomes[0]
    for outcome in outcomes:
        case, share = outcome.case, outcome.overall_s / first.overall_s
        crossing = None
        if case.method != first.case.method and "e" not in (case.method, first.case.method):
            crossing = ec_dnn.crossover_gbit(case, first.case)
        parts = {"communication": outcome.communication_s} | outcome.parts
        figures.append(figure(f"overall_s/{case.name}", [outcome.overall_s], "s"))
        figures.append(figure(f"of_{first.case.name}/{case.name}", [share], "ratio"))
        figures += [figure(f"{part}_s/{case.name}", [s], "s") for part, s in parts.items()]
        if crossing is not None:
            figures.append(figure(f"crossover_gbit/{case.name}", [crossing], "Gbit/s"))
        rows.append(
            [
                case.name,
                str(case.workers),
                str(case.tau) if case.method != "e" else "-",
                f"{case.gbit_per_s:g}",
                f"{outcome.overall_s:.4g}",
                f"{share:.3f}",
                *(f"{parts[part]:.4g}" for part in _PARTS),
                number(crossing),
            ]
        )
    head = ["case", "K", "tau", "Gbit/s", "overall s", "of the first", *_PARTS]
    head += ["as fast at Gbit/s"]
    return figures, text_table(head, rows)
