"""State of the live view besides its curves, as plain JSON facts of a watch."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kdlab.events.ensemble import ErrorsMeasured
from kdlab.events.run_state import PANELS, SPEED
from kdlab.events.teacher_rows import TeacherRow
from kdlab.experiment.folder import ENDED
from kdlab.notebook.watch import Watch
from kdlab.report import timeline
from kdlab.report.check_table import worst_first
from kdlab.report.table import NAMES, duration, number, speeds_tell, spread

_TICKER, _ROWS = 40, 100  # most events and teachers of a page
LiveState = dict[str, Any]


def of_run(watch: Watch, run_id: str) -> LiveState:
    """Return the state of one run."""
    levels = [
        {"panel": panel, "name": name, "points": points}
        for (panel, name), points in watch.levels.items()
    ]
    return {
        **head(watch),
        "verdict": verdict(watch, run_id),
        "results": results(watch),
        "panels": _panels(PANELS),
        "levels": levels,
        "marks": [asdict(mark) for mark in watch.marks],
        "teachers": [_teacher(row) for row in _most_telling(watch)],
        "clock": {"start": watch.now.began, "now": max(watch.time, watch.now.began)},
        "spans": watch.spans,
        "parts": timeline.COLOURS,
        "rounds": [_round(one) for one in watch.now.rounds],
        "film": _film(watch),
        "checks": [
            [one.result, one.code, one.found or one.title, one.advice]
            for one in worst_first(watch.checks.values())
        ],
        "ticker": [list(line) for line in list(watch.ticker)[-_TICKER:][::-1]],
        "waiting": "" if watch.curves else waiting(watch),
    }


def of_runs(watches: Mapping[str, Watch]) -> LiveState:
    """Return the state of several runs, by label."""
    ended = sum(watch.state in ENDED for watch in watches.values())
    runs = [
        {"label": label, "state": shown_state(watch), "progress": progress_line(watch)}
        for label, watch in watches.items()
    ]
    return {
        "title": f"{len(watches)} runs",
        "state": "finished" if ended == len(watches) else "running",
        "done": sum(watch.now.step for watch in watches.values()),
        "of": sum(max(watch.now.of_steps, watch.now.step) for watch in watches.values()),
        "facts": [["ended", f"{ended} of {len(watches)}"]],
        "runs": runs,
        "panels": _panels(panels(watches.values())),
        "waiting": "No training of these runs has started.",
    }


def panels(watches: Iterable[Watch]) -> Mapping[str, tuple[str, str]]:
    """Return the panels of several runs, as in `PANELS`; speeds only where they compare."""
    comparable = speeds_tell(
        {"source": w.now.source, "shares_cores": w.now.shares_cores} for w in watches
    )
    return {name: how for name, how in PANELS.items() if comparable or name != SPEED}


def _panels(shown: Mapping[str, tuple[str, str]]) -> list[LiveState]:
    return [
        {"title": panel, "unit": unit, "across": across}
        for panel, (unit, across) in shown.items()
    ]


def shown_state(watch: Watch) -> str:
    return "paused" if watch.paused and watch.state == "running" else watch.state


def head(watch: Watch) -> LiveState:
    """Return the state of the headline: title, progress and facts."""
    now, facts = watch.now, list[tuple[str, str]]()
    if now.of_steps:
        facts.append(("step", f"{now.step:,} of {now.of_steps:,}"))
    if now.of_epochs:
        epoch = min(now.epoch + (now.step < now.of_steps), now.of_epochs)
        facts.append(("epoch", f"{epoch:,} of {now.of_epochs:,}"))
    if now.loss is not None:
        facts.append(("loss", f"{now.loss:.4g}"))
    if now.top1 is not None:
        facts.append(("top-1", f"{now.top1:.2f} %"))
    if now.rate:
        speed = "speed (cores shared)" if now.shares_cores else "speed"
        facts.append((speed, f"{now.rate:,.0f} samples/s"))
    slow = watch.pace.bottleneck()
    if slow is not None and now.teachers.rows and watch.state not in ENDED:
        facts.append(("waits for soft labels", f"{slow.starved:.0%}"))
    members = list(watch.started.members or ()) if watch.started else []
    number = members.index(now.member) + 1 if now.member in members else 0
    position = f" (training {number} of {len(members)})" if len(members) > 1 else ""
    left = watch.seconds_left()
    return {
        "title": watch.experiment,
        "detail": f"{now.member}{position if number else ''}",
        "state": shown_state(watch),
        "done": now.step,
        "of": now.of_steps,
        "left": "" if left is None else f"about {duration(left)} left",
        "facts": [list(fact) for fact in facts],
    }


def progress_line(watch: Watch) -> str:
    """Return the headline as one line of text."""
    shown = head(watch)
    facts = [f"{name} {value}" for name, value in shown["facts"]]
    return " · ".join(fact for fact in (shown["detail"], *facts, shown["left"]) if fact)


def waiting(watch: Watch) -> str:
    """Return the text shown until there are curves."""
    if watch.state in ENDED:
        return f"The run is {watch.state}; no training has started."
    newest = f"\n{watch.ticker[-1][1]}" if watch.ticker else ""
    return f"Preparing: no step yet.{newest}"


def verdict(watch: Watch, run_id: str) -> dict[str, str] | None:
    """Return the verdict, a problem or the bottleneck; None where there is none."""
    for tone, text in (_end(watch, run_id), _trouble(watch), _bottleneck(watch)):
        if text:
            return {"tone": tone, "text": text}
    return None


def results(watch: Watch) -> list[list[str]]:
    """Return a table of final accuracies, with its head row."""
    rows, described = watch.result.get("runs") or [], watch.result.get("source")
    validated = all(r.get("validation_top1") is not None for r in rows)
    shown = [r for r in rows if validated or r["source"] == described] or rows
    # The choice of run/outputs/student_files.
    ranks = [
        (-r["validation_top1"] if validated else 0, r["source"] == "none") for r in shown
    ]
    exported = shown[ranks.index(min(ranks))] if shown else {}
    head = ["trained", "seeds", "test %", "teacher %", "exported"]
    table = [head] if rows else []
    for source in dict.fromkeys(r["source"] for r in rows):
        group = [r for r in rows if r["source"] == source]
        teacher = watch.result.get("teacher_top1") if source != "none" else None
        mark = f"seed {exported['seed']}" if exported in group else ""
        seeds = ", ".join(f"{r['seed']}" for r in group)
        top1 = spread([r["student_top1"] for r in group], 2)
        table.append([NAMES.get(source, source), seeds, top1, number(teacher), mark])
    return table


def _end(watch: Watch, run_id: str) -> tuple[str, str]:
    if watch.state == "failed":
        reason = watch.error.strip() or "see its log"
        return "bad", f"Failed: {reason}\nFix it, then run: kdlab resume {run_id}"
    if watch.state == "lost":
        return "bad", f"The process ended; no data is lost. Continue: kdlab resume {run_id}"
    if watch.state == "stopped":
        step = watch.now.step
        return "warn", f"Stopped at step {step:,}. Continue: kdlab resume {run_id}"
    tone, sentence = watch.verdict
    if watch.lost or sentence:
        return "bad" if watch.lost else tone, f"{watch.lost}\n{sentence}".strip()
    if watch.paused and watch.state == "running":
        return "warn", "Paused: weights and soft labels stay in memory."
    return "", ""


def _trouble(watch: Watch) -> tuple[str, str]:
    return (
        ("bad", watch.stranded) if watch.stranded and watch.state == "running" else ("", "")
    )


def _bottleneck(watch: Watch) -> tuple[str, str]:
    slow, serving = watch.pace.bottleneck(), watch.now.teachers.serving
    if watch.state != "running" or slow is None or not serving:
        return "", ""
    count = f"{len(serving)} teacher{'s' * (len(serving) > 1)}"
    rates = f" ({count}, up to {sum(r.t_t for r in serving):,.0f} samples/s in total"
    level = watch.levels.get((SPEED, "without a teacher"))
    bare = f"; without a teacher the student takes {level[-1][1]:,.0f}" if level else ""
    if slow.side != "student" and watch.held:
        return "warn", f"{slow.starved:.0%} of its time {watch.held}"
    tone = "good" if slow.side == "student" else "warn"
    return tone, slow.sentence(f"{rates}{bare})")


def _film(watch: Watch) -> LiveState | None:
    """Return the watched images with predictions of teacher and student."""
    images = watch.images
    if images is None or not watch.answers:
        return None
    return {
        "side": images.side,
        "labels": images.labels,
        "answers": [
            {"who": who, "epoch": a.epoch, "classes": a.said, "shares": a.shares}
            for who in ("student at first", "student", "teacher")
            if (a := watch.answers.get(who)) is not None
        ],
    }


def strip(watch: Watch) -> str:
    """Return the watched images as a data URL; empty where there are none."""
    if watch.images is None:
        return ""
    try:
        raw = Path(watch.images.path).read_bytes()
    except OSError:
        return ""
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


def _teacher(row: TeacherRow) -> LiveState:
    facts = {"name": row.name, "state": row.state, "device": row.device, "rate": row.t_t}
    return facts | {"resends": row.resends, "spans": row.spans}


def _round(event: ErrorsMeasured) -> LiveState:
    facts = {"round": event.round, "locals": event.locals, "global": event.global_}
    return facts | {"compressed": event.compressed}


def _most_telling(watch: Watch) -> Sequence[TeacherRow]:
    """Return all teachers; if there are too many, those that serve, then the newest losses."""
    rows = list(watch.now.teachers.rows.values())
    if len(rows) <= _ROWS:
        return rows
    return sorted(rows, key=lambda row: (row.state != "assigned", -row.since))[:_ROWS]
