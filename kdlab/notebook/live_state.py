"""What the live view says beside its curves: plain facts, as JSON, from what was watched."""

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

_TICKER, _ROWS = 40, 100  # that a page gets
LiveState = dict[str, Any]


def of_run(watch: Watch, run_id: str) -> LiveState:
    """All of one run."""
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


def of_several(watches: Mapping[str, Watch]) -> LiveState:
    """Several runs in one view, by what they are called in it."""
    ended = sum(watch.state in ENDED for watch in watches.values())
    runs = [
        {"label": label, "state": shown_state(watch), "said": said(watch)}
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
        "waiting": "No training of these runs has begun.",
    }


def panels(watches: Iterable[Watch]) -> Mapping[str, tuple[str, str]]:
    """Those that several runs share, as in `PANELS`: speeds only where they compare."""
    tell = speeds_tell(
        {"source": one.now.source, "shares_cores": one.now.shares_cores} for one in watches
    )
    return {name: how for name, how in PANELS.items() if tell or name != SPEED}


def _panels(shown: Mapping[str, tuple[str, str]]) -> list[LiveState]:
    return [
        {"title": panel, "unit": unit, "across": across}
        for panel, (unit, across) in shown.items()
    ]


def shown_state(watch: Watch) -> str:
    return "paused" if watch.paused and watch.state == "running" else watch.state


def head(watch: Watch) -> LiveState:
    """The line that says where the run stands."""
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
    which = f" (training {number} of {len(members)})" if len(members) > 1 else ""
    left = watch.seconds_left()
    return {
        "title": watch.experiment,
        "detail": f"{now.member}{which if number else ''}",
        "state": shown_state(watch),
        "done": now.step,
        "of": now.of_steps,
        "left": "" if left is None else f"about {duration(left)} left",
        "facts": [list(fact) for fact in facts],
    }


def said(watch: Watch) -> str:
    """The same in a line."""
    shown = head(watch)
    facts = [f"{name} {value}" for name, value in shown["facts"]]
    return " · ".join(fact for fact in (shown["detail"], *facts, shown["left"]) if fact)


def waiting(watch: Watch) -> str:
    """What stands where curves will be."""
    if watch.state in ENDED:
        return f"The run is {watch.state}; no training of it has begun."
    newest = f"\n{watch.ticker[-1][1]}" if watch.ticker else ""
    return f"Preparing: no step has been trained yet.{newest}"


def verdict(watch: Watch, run_id: str) -> dict[str, str] | None:
    """What is the matter, or which side is the bottleneck; None where there is nothing to say."""
    for tone, text in (_end(watch, run_id), _trouble(watch), _bottleneck(watch)):
        if text:
            return {"tone": tone, "text": text}
    return None


def results(watch: Watch) -> list[list[str]]:
    """Accuracies of all trainings when they have ended, below the names of columns."""
    rows, described = watch.result.get("runs") or [], watch.result.get("source")
    validated = all(r.get("validation_top1") is not None for r in rows)
    own = [r for r in rows if validated or r["source"] == described] or rows
    # As run/outputs/student_files chooses.
    order = [
        (-r["validation_top1"] if validated else 0, r["source"] == "none") for r in own
    ]
    taken = own[order.index(min(order))] if own else {}
    head = ["trained", "seeds", "test %", "teacher %", "exported"]
    table = [head] if rows else []
    for source in dict.fromkeys(r["source"] for r in rows):
        group = [r for r in rows if r["source"] == source]
        teacher = watch.result.get("teacher_top1") if source != "none" else None
        mark = f"seed {taken['seed']}" if taken in group else ""
        seeds = ", ".join(f"{r['seed']}" for r in group)
        top1 = spread([r["student_top1"] for r in group], 2)
        table.append([NAMES.get(source, source), seeds, top1, number(teacher), mark])
    return table


def _end(watch: Watch, run_id: str) -> tuple[str, str]:
    if watch.state == "failed":
        why = watch.error.strip() or "its log says why"
        return "bad", f"It failed: {why}\nWhen that is mended: kdlab resume {run_id}"
    if watch.state == "lost":
        return "bad", f"Its process is gone; nothing is lost: kdlab resume {run_id}"
    if watch.state == "stopped":
        step = watch.now.step
        return "warn", f"Stopped at step {step:,}. To go on: kdlab resume {run_id}"
    tone, said = watch.verdict
    if watch.lost or said:
        return "bad" if watch.lost else tone, f"{watch.lost}\n{said}".strip()
    if watch.paused and watch.state == "running":
        return "warn", "Paused: weights and soft labels stay in memory."
    return "", ""


def _trouble(watch: Watch) -> tuple[str, str]:
    return (
        ("bad", watch.stranded) if watch.stranded and watch.state == "running" else ("", "")
    )


def _bottleneck(watch: Watch) -> tuple[str, str]:
    found, serving = watch.pace.bottleneck(), watch.now.teachers.serving
    if watch.state != "running" or found is None or not serving:
        return "", ""
    rate = sum(row.t_t for row in serving)
    able = f" ({len(serving)} teachers give up to {rate:,.0f} samples/s together"
    free = watch.levels.get((SPEED, "without a teacher"))
    alone = f"; without a teacher the student takes {free[-1][1]:,.0f}" if free else ""
    if found.side != "student" and watch.held:
        return "warn", f"{found.starved:.0%} of its time {watch.held}"
    tone = "good" if found.side == "student" else "warn"
    return tone, found.sentence(f"{able}{alone})")


def _film(watch: Watch) -> LiveState | None:
    """The images that are watched, and what the teacher and the student say of them."""
    chosen = watch.images
    if chosen is None or not watch.answers:
        return None
    return {
        "side": chosen.side,
        "labels": chosen.labels,
        "answers": [
            {"who": who, "epoch": one.epoch, "said": one.said, "shares": one.shares}
            for who in ("student at first", "student", "teacher")
            if (one := watch.answers.get(who)) is not None
        ],
    }


def strip(watch: Watch) -> str:
    """The picture of the images that are watched, for a page; empty where there is none."""
    if watch.images is None:
        return ""
    try:
        raw = Path(watch.images.path).read_bytes()
    except OSError:
        return ""
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


def _teacher(row: TeacherRow) -> LiveState:
    own = {"name": row.name, "state": row.state, "device": row.device, "rate": row.t_t}
    return own | {"resends": row.resends, "spans": row.spans}


def _round(one: ErrorsMeasured) -> LiveState:
    own = {"round": one.round, "locals": one.locals, "together": one.global_}
    return own | {"compressed": one.compressed}


def _most_telling(watch: Watch) -> Sequence[TeacherRow]:
    """All rows, or those that serve and then the newest losses where there are too many."""
    rows = list(watch.now.teachers.rows.values())
    if len(rows) <= _ROWS:
        return rows
    return sorted(rows, key=lambda row: (row.state != "assigned", -row.since))[:_ROWS]
