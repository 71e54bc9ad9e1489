"""Runs side by side: what their specs differ in, the curves, and what came out."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from kdlab.codec import plain
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
from kdlab.report.chart import Panel
from kdlab.report.table import METHODS, NAMES, NO_SPEEDS, speeds_tell, spread, text_table
from kdlab.report.verdict import Verdict
from kdlab.run.handle.run import Run, attach
from kdlab.tracking import ui_address
from kdlab.tracking.follow import log_page
from kdlab.tracking.in_mlflow import InMlflow

HEAD = (
    "training", "top-1 %", "best-on-val %", "global top-1 %", "samples/s", "wall s",
    "teacher s", "lost/repeated",
)  # fmt: skip
_COMPARED = {  # curves, and what they are called beside those of others
    (LOSS, "loss"): "loss",
    (LOSS, "loss of the blocks"): "loss of the blocks",
    (TOP1, "student"): "top-1 on validation, %",
    (ERROR, "global (_G)"): "test error of _G, %",
    (ERROR, "local (_L)"): "test error of _L, %",
}
MemberFacts = Mapping[str, object]  # a row of a run's result, maybe of an older kdlab


@dataclass(frozen=True, slots=True)
class _RunResult:
    runs: list[dict[str, object]]
    verdict: Verdict | None = None


class Comparison:
    """Printable in a terminal, a page in a notebook and in MLflow; as the runs are now.

    `differences()`, `outcomes()` and `curves()` give what it shows as plain values.
    """

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self._trainings = {
            run.id: run_state(EventReader(run.folder.events)()).trainings for run in runs
        }

    def differences(self) -> list[tuple[str, list[object]]]:
        """Spec keys whose values differ, with the value of each run."""
        specs = [dict(flat(run.folder.resolved())) for run in self.runs]
        keys = dict.fromkeys(key for spec in specs for key in spec if key != "about")
        rows = [(key, [spec.get(key, "-") for spec in specs]) for key in keys]
        return [(k, values) for k, values in rows if any(v != values[0] for v in values)]

    def outcomes(self) -> list[dict[str, str]]:
        """A row for each run and what it compared: mean ± std over its seeds.

        teacher s: seconds of all teachers together, while they were this training's; with
            wall s it is what the training cost.
        samples/s: a dash where teachers took the cores of their student, see `notes`.
        """
        rows = []
        for run in self.runs:
            told = self._trainings[run.id]
            found = _results(run)
            for source in dict.fromkeys(str(row.get("source")) for row in found):
                own = [row for row in found if str(row.get("source")) == source]
                rows.append(_row(self._label(run, source), own, told))
            if not found:
                rows.append(dict.fromkeys(HEAD, "-") | {"training": self._label(run, "")})
        return rows if self._speeds_tell() else [row | {"samples/s": "-"} for row in rows]

    def _speeds_tell(self) -> bool:
        return speeds_tell(row for run in self.runs for row in _results(run))

    def notes(self) -> list[str]:
        """What stands below the table."""
        return [*([] if self._speeds_tell() else [NO_SPEEDS]), *self.verdicts()]

    def verdicts(self) -> list[str]:
        """Whether the teacher helped, in a sentence for each run that compared it with none."""
        found = list[str]()
        for run in self.runs:
            kept = _kept(run)
            if kept is not None and kept.verdict is not None:
                label = "" if len(self.runs) == 1 else f"{run.id[-4:]}: "
                found.append(f"{label}{kept.verdict.sentence}")
        return found

    def curves(self) -> list[Panel]:
        """Loss and accuracy, over time and over samples (or iterations)."""
        over: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
        for run in self.runs:
            for one in self._trainings[run.id].values():
                name = f"{self._label(run, one.source)} · {one.member}"
                for column, across in ((SECONDS, "seconds"), (COUNT, one.counted)):
                    for key, points in one.over(column).items():
                        if key in _COMPARED:
                            over.setdefault((_COMPARED[key], across), {})[name] = points
        return [
            Panel(title, curves, across=across) for (title, across), curves in over.items()
        ]

    def links(self) -> list[str]:
        """Links to MLflow's page that compares runs, one for each store.

        A store in a file is shown by `kdlab ui`: where it is up now, else where it comes up.
        """
        found: dict[str, list[InMlflow]] = {}
        for run in self.runs:
            state = InMlflow.read(run.path)
            if state.runs:
                found.setdefault(str(state.uri), []).append(state)
        return [_link(uri, states) for uri, states in found.items()]

    def page(self) -> str:
        """All of it as one HTML page of its own."""
        ids = ", ".join(run.id for run in self.runs)
        return page.whole(f"kdlab: {ids}", self._repr_html_())

    def save(self, path: str | Path) -> Path:
        """The page as a file."""
        return page.write(path, self.page())

    def log(self) -> list[str]:
        """The page as an artifact (`comparison.html`) of every run's MLflow run; their ids.

        Raises:
            BadInput: none of them is in MLflow.
        """
        states = [InMlflow.read(run.path) for run in self.runs]
        known = [state for state in states if "" in state.runs]
        if not known:
            raise BadInput(
                "None of these runs is in MLflow yet. A run is written there while it goes on, "
                "unless tracking.enabled is false; kdlab runs --sync writes what is missing."
            )
        return log_page(known, "comparison.html", self.page())

    def _label(self, run: Run, source: str) -> str:
        """Short, and another one for each run."""
        own = NAMES.get(source, source)
        if len(self.runs) == 1:
            return own or run.id
        return f"{run.id[-4:]} {own}".strip()

    def __str__(self) -> str:
        head = ["", *(run.id for run in self.runs)]
        rows = [[key, *map(_short, values)] for key, values in self.differences()]
        spec = text_table(head, rows) if rows else "The specs do not differ."
        if len(self.runs) == 1:
            spec, table = "", self.runs[0].path / METHODS
            if table.is_file():
                return table.read_text(encoding="utf-8")
        names = self.head()
        outcome = [[row[key] for key in names] for row in self.outcomes()]
        said = "\n".join(fill(note, 100) for note in self.notes())
        return f"{spec}\n\n{text_table(names, outcome)}\n\n{said}".strip()

    __repr__ = __str__

    def head(self) -> list[str]:
        """Columns of `outcomes` that have a value."""
        rows = self.outcomes()
        return [key for key in HEAD if any(row[key] != "-" for row in rows)]

    def to_json(self) -> dict[str, Any]:
        """What differs and what came out, for scripts."""
        return {
            "runs": [run.id for run in self.runs],
            "differences": dict(self.differences()),
            "outcomes": self.outcomes(),
            "verdicts": self.verdicts(),
            "links": self.links(),
        }

    def _repr_html_(self) -> str:
        head = self.head()
        body = page.table(head, [[row[key] for key in head] for row in self.outcomes()])
        said = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        parts = [f"<h4>What came out</h4>{body}{said}"]
        if len(self.runs) > 1:
            differ = [[key, *map(_short, values)] for key, values in self.differences()]
            names = ["key", *(run.id for run in self.runs)]
            same = "<p>The specs do not differ.</p>"
            shown = page.table(names, differ) if differ else same
            parts.insert(0, f"<h4>What their specs differ in</h4>{shown}")
        panels = self.curves()
        if panels:
            parts.insert(-1, f"<h4>Curves</h4>{page.image(chart.svg(panels))}")
        for link in self.links():
            shown = f'<a href="{html.escape(link)}">compare in MLflow</a>'
            parts.append(
                f"<p>{shown} (kdlab ui)</p>" if ui_address() in link else f"<p>{shown}</p>"
            )
        return "".join(parts)


def compare(*runs: Run | str) -> Comparison:
    """Two or more runs, by object or id; or one that compared several things itself.

    Raises:
        BadInput: none, or a single one that did one training only.
    """
    known = [attach(run) if isinstance(run, str) else run for run in runs]
    single = len(known) == 1 and not _several(known[0])
    if not known or single:
        raise BadInput(
            "Comparing needs two runs or more, or one that trained several things itself "
            "(compare, method.compare or several seeds)."
        )
    return Comparison(known)


def overview(run: Run) -> dict[str, str]:
    """What a run came to, for MLflow: files by name, `note.md` for its description."""
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


def _kept(run: Run) -> _RunResult | None:
    """Written before the status says finished."""
    return recall_as(
        _RunResult, run.path / "result.json", "Those of its members are shown."
    )


def _results(run: Run) -> list[MemberFacts]:
    """A row for each training that has ended, whatever became of the run."""
    kept = _kept(run)
    if kept is not None:
        return [*kept.runs]
    from kdlab.run.process.outcome import row  # imports torch
    from kdlab.train.result import MemberResult

    ended = sorted((run.path / "members").glob("*/*/result.json"))
    reports = [recall_as(MemberResult, path, "It is left out.") for path in ended]
    return [plain(row(report)) for report in reports if report is not None]


def _several(run: Run) -> bool:
    spec = run.folder.resolved()
    compared = (spec.get("compare"), spec["method"].get("compare"), spec.get("seeds"))
    return any(len(one or ()) > 1 for one in compared)


def _row(
    label: str, own: Sequence[MemberFacts], told: Mapping[str, TrainingState]
) -> dict[str, str]:
    def numbers(key: str) -> list[int | float]:
        return [v for row in own if isinstance(v := row.get(key), int | float)]

    def over(key: str, digits: int) -> str:
        values = numbers(key)
        return spread(values, digits) if values else "-"

    known = [told[name] for row in own if (name := str(row.get("member"))) in told]
    teacher_s = [one.teachers.served_s for one in known]
    wall_s = [one.seconds for one in known]
    return {
        "training": label,
        "top-1 %": over("student_top1", 2),
        "best-on-val %": over("student_top1_best", 2),
        "global top-1 %": over("global_top1", 2),
        "samples/s": over("samples_per_second", 0),
        "wall s": spread(wall_s, 1) if wall_s else over("wall_seconds", 1),
        "teacher s": f"{fmean(teacher_s):.1f}" if any(teacher_s) else "-",
        "lost/repeated": f"{sum(numbers('samples_lost'))}/{sum(numbers('samples_repeated'))}",
    }


def _link(uri: str, states: Sequence[InMlflow]) -> str:
    """To compare runs: of each one its members, where it has several."""
    runs: list[str] = []
    for state in states:
        own = {name: run for name, run in state.runs.items() if name}
        runs += dict.fromkeys(own.values() or state.runs.values())
    experiments = list(dict.fromkeys(str(state.experiment_id) for state in states))
    host = uri.rstrip("/") if uri.startswith(("http://", "https://")) else ui_address()
    what = f"runs={json.dumps(runs)}&experiments={json.dumps(experiments)}"
    return f"{host}/#/compare-runs?{what}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
