"""Sends alerts on a run or a sweep to a webhook, from a process that outlives it.

Only the user's settings have the address: a config from somebody else cannot send anything.
"""

import html
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from kdlab.config.credentials import webhook
from kdlab.config.home import never_anew
from kdlab.errors import ClusterError, KdlabError, short
from kdlab.events.event import Event
from kdlab.events.general import Warned
from kdlab.events.log import EventLog
from kdlab.events.run_state import TOP1, RunState
from kdlab.events.runs import LoggedData, RunStarted
from kdlab.events.teachers import AllTeachersLost, TeacherJoined
from kdlab.events.training import EpochDone, StepLogged
from kdlab.experiment.folder import PATIENCE_S, RunFolder, RunStatus
from kdlab.report.bottleneck import bottleneck_of
from kdlab.report.table import number, visible
from kdlab.report.verdict import guessed
from kdlab.run.handle.job_handle import JobHandle

_DEADLINE_S = 10
_STARVES, _STARVES_S, _AGAIN_S = 0.5, 300.0, 3600.0  # share of this time; sent again after
_EPOCHS = 5  # with nothing learned, or half of it lost


def request(address: str, title: str, text: str) -> Request:
    """Build the request of an alert in the format of its host: ntfy, Slack, Discord or JSON."""
    host, message = urlsplit(address).hostname or "", f"{title}\n{text}"
    if host.split(".")[0] == "ntfy":
        title = title.encode("ascii", "replace").decode()
        return Request(address, text.encode(), {"Title": title})
    body = json.dumps({"title": title, "text": text})
    if host == "hooks.slack.com":
        body = json.dumps({"text": html.escape(message, quote=False)})
    elif host in ("discord.com", "discordapp.com"):  # nobody is mentioned
        body = json.dumps({"content": message, "allowed_mentions": {"parse": []}})
    return Request(address, body.encode(), {"Content-Type": "application/json"})


class _Stays(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Refuse a redirect: no other host gets an alert."""


def send(address: str, title: str, text: str) -> None:
    """Send an alert; the ClusterError of a refusal names the host only: the address is secret."""
    try:
        asked = request(address, title, text)
        build_opener(_Stays).open(asked, timeout=_DEADLINE_S).close()
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "code", getattr(error, "reason", type(error).__name__))
        host = urlsplit(address).hostname
        raise ClusterError(f"{host} did not take an alert: {why}.") from None


class Alerts(JobHandle):
    """Watches a run or a sweep and alerts its user, once for each trouble."""

    tick_s = 1.0

    def __init__(self, folder: RunFolder, address: str) -> None:
        super().__init__(folder)
        self.address, self.since, self.broken = address, folder.since, False
        self.title = str(folder.origin().experiment).rpartition("/")[2]
        self.run = RunState()
        self.gone = self.begin = inf  # time since no teacher is left; begin of the window
        self.figures: Mapping[str, float] = {}  # at the begin of the window
        self.sent: dict[str, float] = {}  # times of alerts, by trouble

    def follow(self) -> None:
        """Watch the run or sweep to its end, and alert of that."""
        for news in self._news():
            for event in news:
                self.on_event(event)
            self.update(time.time())
        if self.state == "lost":  # a `kdlab stop --now` writes its status in a moment
            time.sleep(PATIENCE_S)
        status = self.status
        self.alert(status.state or "deleted", summary_of(status), time.time())

    def on_event(self, event: Event) -> None:
        """Take in an event; `update` notices the trouble that no event reports."""
        before, step = self.run.now, self.run.now.step
        self.run.apply(event)
        match event:
            case AllTeachersLost() if event.time >= self.since:
                self.gone = event.time
            case TeacherJoined() | RunStarted():
                self.gone = inf
            case EpochDone() if event.time >= self.since and self.run.started:
                self._learning(event, self.run.started.dataset)
            case StepLogged():
                self.gone, seconds = inf, event.time - self.begin
                if self.run.now is not before or event.step < step:
                    seconds = -inf  # nothing to compare with
                if not 0 <= seconds < _STARVES_S:
                    slow = bottleneck_of(seconds, event.figures, self.figures)
                    self.begin, self.figures = event.time, event.figures
                    if slow is not None and slow.starved >= _STARVES:
                        self.alert("starves", slow.sentence(), event.time)

    def update(self, now: float) -> None:
        if (waits := now - self.gone) >= _STARVES_S:
            words = f"No teacher is left; the student has waited for {waits:.0f} s."
            self.alert("starves", words, now)

    def _learning(self, event: EpochDone, data: LoggedData) -> None:
        curve = [top1 for _, top1 in self.run.newest.curves.get((TOP1, "student"), ())]
        if len(curve) < _EPOCHS or min(data.classes, data.validation) < 2:
            return
        guess, best, last = 100 / data.classes, max(curve), max(curve[-_EPOCHS:])
        if last <= max(guessed(guess, data.validation), (best + guess) / 2):
            words = f"{event.member}: for {_EPOCHS} epochs top-1 on validation is {last:.1f} % at "
            words += (
                f"most, it was {best:.1f} % at best; a guess is right in {guess:.1f} %."
            )
            self.alert("stops learning", words, event.time, str(event.member))

    def alert(self, what: str, text: str, at: float, member: str = "") -> None:
        """Send an alert, once for a member, else once an hour; none from earlier sessions."""
        before = self.sent.get(what + member, -inf)
        if at < self.since or at - before < (inf if member else _AGAIN_S):
            return
        self.sent[what + member] = at
        if what in ("starves", "stops learning"):  # terminal and notebook show it, too
            warn(self.folder, f"{what}: {text}")
        lines = (f"{self.title}: {what}", f"{self.id}: {text}")
        try:
            send(self.address, *(visible(" ".join(line.split())) for line in lines))
        except ClusterError as error:
            if not self.broken:
                warn(self.folder, f"{error} The run continues. Try: kdlab doctor --alert")
            self.broken = True


def summary_of(status: RunStatus) -> str:
    """Figures and verdict of a run, or why it has none; without paths and addresses."""
    result: Any = status.result or {}
    if not result:
        why = status.error or "its process was ended from outside, or the machine went down"
        return short(re.sub(r"\S*[/\\]\S*", "...", why.partition("\n")[0]))
    figures = {key: result.get(key) for key in ("student_top1", "teacher_top1")}
    figures |= (result.get("best") or {}).get("values") or {}  # a sweep's
    figures["seconds"] = result.get("wall_seconds")
    rows = [f"{key} {number(value)}" for key, value in figures.items() if value is not None]
    return f"{', '.join(rows)}. {(result.get('verdict') or {}).get('sentence', '')}".strip()


def warn(folder: RunFolder, message: str) -> None:
    with suppress(OSError):
        log = EventLog(folder.events)
        log.emit(Warned(message=message))
        log.close()


def main() -> None:
    folder = RunFolder(Path(sys.argv[1]))
    never_anew.add(folder.path)
    os.nice(10)
    try:
        if address := webhook():
            Alerts(folder, address).follow()
    except KdlabError as error:
        warn(folder, f"No alerts are sent: {error}")


if __name__ == "__main__":
    main()
