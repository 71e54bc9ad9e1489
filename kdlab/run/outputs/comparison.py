"""Comparison of runs: results, curves, and differences between the specs."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from textwrap import fill
from typing import Any

from kdlab.codec import to_builtins
from kdlab.config.home import recall_as
from kdlab.config.load import flat
from kdlab.errors import BadInput
from kdlab.events.log import EventReader
from kdlab.events.run_state import (
    COUNT,
    ERROR,
    LOSS,
    SECONDS,
    TOP1,
    TrainingState,
    run_state,
)
from kdlab.report import chart, page
from kdlab.report.chart import Panel, Points
from kdlab.report.curve_axis import curve_axis
from kdlab.report.page import Card, CardPage, Presentable
from kdlab.report.table import METHODS, NAMES, NO_SPEEDS, speeds_tell, spread, text_table
from kdlab.report.verdict import Verdict, shown
from kdlab.run.handle.run import Run, attach
from kdlab.tracking import ui_address
from kdlab.tracking.follow import log_page
from kdlab.tracking.in_mlflow import MlflowLocation

HEAD = (  # what decides first
    "training", "top-1 %", "gain", "teacher %", "best-on-val %", "global top-1 %",
    "samples/s", "wall s", "teacher s", "lost/repeated",
)  # fmt: skip
_COMPARED = (TOP1, ERROR, LOSS)
# Parts of specs in which a student and the plain one beside it differ.
_TEACHING = {"teacher", "teacher_pool", "soft_labels", "loss", "features", "compare", "seeds",
             "tracking"}  # fmt: skip
_NO_DIFFERENCES = "The specs do not differ."
MemberFacts = Mapping[str, object]  # a row of a run's result, maybe of an older kdlab


@dataclass(frozen=True, slots=True)
class _RunResult:
    runs: list[dict[str, object]]
    teacher_top1: float | None = None
    verdict: Verdict | None = None


class Comparison(Presentable):
    """Compares runs in their present state: text in a terminal, a page in a notebook and MLflow.

    `differences()`, `outcomes()` and `curves()` return its content as plain values.
    """

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self._trainings = {
            run.id: run_state(EventReader(run.folder.events)()).trainings for run in runs
        }

    def differences(self) -> list[tuple[str, list[object]]]:
        """Return the spec keys whose values differ, with the value of each run."""
        specs = [dict(flat(run.folder.resolved())) for run in self.runs]
        keys = dict.fromkeys(key for spec in specs for key in spec if key != "about")
        rows = [(key, [spec.get(key, "-") for spec in specs]) for key in keys]
        return [(k, values) for k, values in rows if any(v != values[0] for v in values)]

    def outcomes(self) -> list[dict[str, str]]:
        """Return a row for each run and source: mean ± std over its seeds.

        gain: points of top-1 over the student without a teacher of the same run, or of a run
            that differs only in its teaching.
        teacher s: seconds of all teachers while they served this training; together with
            wall s the cost of the training.
        samples/s: a dash where teachers took the cores of their student, see `notes`.
        """
        rows = []
        results = {run.id: _results(run) for run in self.runs}
        alike = _TEACHING.issuperset(key.partition(".")[0] for key, _ in self.differences())
        for run in self.runs:
            trainings, members = self._trainings[run.id], results[run.id]
            related = chain(*results.values()) if alike else members
            untaught = [row for row in related if row.get("source") == "none"]
            baseline = _numbers(untaught, "student_top1")
            for source in dict.fromkeys(str(row.get("source")) for row in members):
                seeds = [row for row in members if str(row.get("source")) == source]
                rows.append(_row(self._label(run, source), seeds, baseline, trainings))
            if not members:
                rows.append(dict.fromkeys(HEAD, "-") | {"training": self._label(run, "")})
        return rows if self._speeds_tell() else [row | {"samples/s": "-"} for row in rows]

    def _speeds_tell(self) -> bool:
        return speeds_tell(row for run in self.runs for row in _results(run))

    def notes(self) -> list[str]:
        """Return the notes below the table."""
        return [*([] if self._speeds_tell() else [NO_SPEEDS]), *self.verdicts()]

    def verdicts(self) -> list[str]:
        """Return a sentence on whether the teacher helped, for each run that can compare."""
        return [sentence for _, sentence in self._toned_verdicts()]

    def _toned_verdicts(self) -> list[tuple[str, str]]:
        """Verdicts on teachers, each with its tone."""
        verdicts = list[tuple[str, str]]()
        for run in self.runs:
            if (result := _read_result(run)) and result.verdict:
                tone, words = shown(to_builtins(result.verdict))
                label = "" if len(self.runs) == 1 else f"{run.id[-4:]}: "
                verdicts.append((tone, label + words))
        return verdicts

    def curves(self) -> list[Panel]:
        """Plot accuracies, then losses by kind, over samples (or iterations) and over time."""
        panels: dict[tuple[bool, str, str, bool, str], dict[str, Points]] = {}
        for run in self.runs:
            loss = run.folder.resolved().get("loss")
            for training in self._trainings[run.id].values():
                name = f"{self._label(run, training.source)} · {training.member}"
                for column, across in ((COUNT, training.counted), (SECONDS, "seconds")):
                    for (panel, curve), points in training.over(column).items():
                        if panel in _COMPARED and not curve.startswith("worker"):
                            title, unit = curve_axis(panel, curve, training.source, loss)
                            title += f", {curve}" if panel == ERROR else ""
                            key = (panel == LOSS, title, unit, column == SECONDS, across)
                            panels.setdefault(key, {})[name] = points
        return [
            Panel(title, panels[key], across=across, unit=unit)
            for key in sorted(panels)
            for _, title, unit, _, across in [key]
        ]

    def links(self) -> list[str]:
        """Return links to MLflow's page that compares runs, one for each store.

        The link of a store in a file goes to `kdlab ui`, at its present or default address.
        """
        by_store: dict[str, list[MlflowLocation]] = {}
        for run in self.runs:
            state = MlflowLocation.read(run.path)
            if state.runs:
                by_store.setdefault(str(state.uri), []).append(state)
        return [_link(uri, states) for uri, states in by_store.items()]

    def log(self) -> list[str]:
        """Log the page as artifact `comparison.html` of every MLflow run; return their ids.

        Raises:
            BadInput: none of the runs is in MLflow.
        """
        states = [MlflowLocation.read(run.path) for run in self.runs]
        known = [state for state in states if "" in state.runs]
        if not known:
            raise BadInput(
                "None of these runs is in MLflow yet. A run is written there while it trains, "
                "unless tracking.enabled is false; kdlab runs --sync writes what is missing."
            )
        return log_page(known, "comparison.html", self.page())

    def _label(self, run: Run, source: str) -> str:
        """A short label, unique to each run."""
        name = NAMES.get(source, source)
        if len(self.runs) == 1:
            return name or run.id
        return f"{run.id[-4:]} {name}".strip()

    def __str__(self) -> str:
        head = ["", *(run.id for run in self.runs)]
        rows = [[key, *map(_short, values)] for key, values in self.differences()]
        spec = text_table(head, rows) if rows else _NO_DIFFERENCES
        if len(self.runs) == 1:
            spec, table = "", self.runs[0].path / METHODS
            if table.is_file():
                return table.read_text(encoding="utf-8")
        names = self.head()
        outcome = [[row[key] for key in names] for row in self.outcomes()]
        notes = "\n".join(fill(note, 100) for note in self.notes())
        return f"{spec}\n\n{text_table(names, outcome)}\n\n{notes}".strip()

    __repr__ = __str__

    def head(self) -> list[str]:
        """Return the columns of `outcomes` that have a value."""
        rows = self.outcomes()
        return [key for key in HEAD if any(row[key] != "-" for row in rows)]

    def to_json(self) -> dict[str, Any]:
        """Return differences and outcomes for scripts."""
        return {
            "runs": [run.id for run in self.runs],
            "differences": dict(self.differences()),
            "outcomes": self.outcomes(),
            "verdicts": self.verdicts(),
            "links": self.links(),
        }

    def document(self) -> CardPage:
        """Return a page of the verdict, results, curves and differences between the specs."""
        head, single = self.head(), len(self.runs) == 1
        body = page.table(head, [[row[key] for key in head] for row in self.outcomes()])
        links = "".join(
            f'<p><a href="{html.escape(link)}">compare in MLflow</a>'
            f"{' (kdlab ui)' if ui_address() in link else ''}</p>"
            for link in self.links()
        )
        notes = page.lines([] if self._speeds_tell() else [NO_SPEEDS])
        cards = [Card("Results", body + notes + links), *page.charts(self.curves())]
        if not single:
            differ = [[key, *map(_short, values)] for key, values in self.differences()]
            names = ["key", *(run.id for run in self.runs)]
            same = page.lines([_NO_DIFFERENCES])
            table = page.table(names, differ) if differ else same
            cards.append(Card("Differences between the specs", table))
        title = self.runs[0].id if single else f"Comparison of {len(self.runs)} runs"
        detail = "" if single else ", ".join(run.id for run in self.runs)
        return CardPage(title, cards, self._toned_verdicts(), detail)


def compare(*runs: Run | str) -> Comparison:
    """Compare two or more runs, by object or id, or the trainings of a single run.

    Raises:
        BadInput: no run was given, or a single one with only one training.
    """
    handles = [attach(run) for run in runs]
    single = len(handles) == 1 and not _several(handles[0])
    if not handles or single:
        raise BadInput(
            "Comparing needs two runs or more, or one that trained several things itself "
            "(compare, method.compare or several seeds)."
        )
    return Comparison(handles)


def overview(run: Run) -> dict[str, str]:
    """Return the overview of a run for MLflow: files by name, `note.md` is its description."""
    from kdlab.run.outputs.student_files import better_of  # imports torch

    comparison, origin = Comparison([run]), run.folder.origin()
    spec = run.folder.resolved()
    head = comparison.head()
    lines = [[page.markdown(row[key]) for key in head] for row in comparison.outcomes()]
    notes = [
        *reversed(comparison.notes()),
        str(spec.get("about", "")),
        better_of(run.folder),
    ]
    note = [  # MLflow folds all but the first lines: the verdict leads
        *map(page.markdown, notes),
        f"`kdlab run {origin.experiment}`, spec `{origin.spec_hash}`",
        page.markdown_table(head, lines),
        "![curves](overview.svg)",
    ]
    return {
        "overview.html": comparison.page(),
        "overview.svg": chart.svg(comparison.curves()),
        "note.md": "\n\n".join(filter(None, note)),
    }


def _read_result(run: Run) -> _RunResult | None:
    """The result, which is written before the status says finished."""
    return recall_as(
        _RunResult, run.path / "result.json", "Those of its members are shown."
    )


def _results(run: Run) -> list[MemberFacts]:
    """A row for each finished training, also of a run that has no result."""
    result = _read_result(run)
    if result is not None:
        return [row | {"teacher_top1": result.teacher_top1} for row in result.runs]
    from kdlab.run.process.outcome import row  # imports torch
    from kdlab.train.result import MemberResult

    ended = sorted((run.path / "members").glob("*/*/result.json"))
    reports = [recall_as(MemberResult, path, "It is left out.") for path in ended]
    return [
        to_builtins(row(report)) | {"teacher_top1": report.teacher_top1}
        for report in reports
        if report is not None
    ]


def _several(run: Run) -> bool:
    spec = run.folder.resolved()
    compared = (spec.get("compare"), spec["method"].get("compare"), spec.get("seeds"))
    return any(len(one or ()) > 1 for one in compared)


def _row(
    label: str,
    seeds: Sequence[MemberFacts],
    baseline: Sequence[float],
    trainings: Mapping[str, TrainingState],
) -> dict[str, str]:
    def over(key: str, digits: int) -> str:
        values = _numbers(seeds, key)
        return spread(values, digits) if values else "-"

    names = [str(row.get("member")) for row in seeds]
    states = [trainings[name] for name in names if name in trainings]
    teacher_s, wall_s = [s.teachers.served_s for s in states], [s.seconds for s in states]
    taught = seeds[0].get("source") != "none"
    top1, teacher = (_numbers(seeds, key) for key in ("student_top1", "teacher_top1"))
    gain = f"{fmean(top1) - fmean(baseline):+.2f}" if taught and top1 and baseline else "-"
    lost, repeated = (sum(_numbers(seeds, f"samples_{k}")) for k in ("lost", "repeated"))
    return {
        "training": label,
        "top-1 %": over("student_top1", 2),
        "gain": gain,
        "teacher %": f"{fmean(teacher):.2f}" if taught and teacher else "-",
        "best-on-val %": over("student_top1_best", 2),
        "global top-1 %": over("global_top1", 2),
        "samples/s": over("samples_per_second", 0),
        "wall s": spread(wall_s, 1) if wall_s else over("wall_seconds", 1),
        "teacher s": f"{fmean(teacher_s):.1f}" if any(teacher_s) else "-",
        "lost/repeated": f"{lost}/{repeated}",
    }


def _numbers(rows: Sequence[MemberFacts], key: str) -> list[int | float]:
    return [v for row in rows if isinstance(v := row.get(key), int | float)]


def _link(uri: str, states: Sequence[MlflowLocation]) -> str:
    """A link that compares runs: members of each run, where it has several."""
    runs: list[str] = []
    for state in states:
        members = {name: run for name, run in state.runs.items() if name}
        runs += dict.fromkeys(members.values() or state.runs.values())
    experiments = list(dict.fromkeys(str(state.experiment_id) for state in states))
    host = uri.rstrip("/") if uri.startswith(("http://", "https://")) else ui_address()
    what = f"runs={json.dumps(runs)}&experiments={json.dumps(experiments)}"
    return f"{host}/#/compare-runs?{what}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
