"""Tells a webhook what a run or a sweep comes to: a process beside it, which outlives it.

The address is its user's own: no spec names it, so that nobody else's config sends anything.
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
from kdlab.events.runs import RunStarted
from kdlab.events.teachers import AllTeachersLost, TeacherJoined
from kdlab.events.training import EpochDone, StepLogged
from kdlab.experiment.folder import PATIENCE_S, RunFolder, RunStatus
from kdlab.report.bottleneck import bottleneck_of
from kdlab.report.table import number, visible
from kdlab.report.verdict import guessed
from kdlab.run.handle.job_handle import JobHandle

_DEADLINE_S = 10
_STARVES, _STARVES_S, _AGAIN_S = 0.5, 300.0, 3600.0  # share of this time; told again after
_EPOCHS = 5  # in which nothing was learned, or half of it is gone


def request(address: str, title: str, text: str) -> Request:
    """An alert as the host of the address takes it."""
    host, said = urlsplit(address).hostname or "", f"{title}\n{text}"
    if host.split(".")[0] == "ntfy":
        title = title.encode("ascii", "replace").decode()
        return Request(address, text.encode(), {"Title": title})
    body = json.dumps({"title": title, "text": text})
    if host == "hooks.slack.com":
        body = json.dumps({"text": html.escape(said, quote=False)})
    elif host in ("discord.com", "discordapp.com"):  # nobody is mentioned
        body = json.dumps({"content": said, "allowed_mentions": {"parse": []}})
    return Request(address, body.encode(), {"Content-Type": "application/json"})


class _Stays(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A redirect is an error: nobody else gets an alert."""


def send(address: str, title: str, text: str) -> None:
    """ClusterError where it is not taken; of the address, which is a secret, it has the host."""
    try:
        asked = request(address, title, text)
        build_opener(_Stays).open(asked, timeout=_DEADLINE_S).close()
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "code", getattr(error, "reason", type(error).__name__))
        host = urlsplit(address).hostname
        raise ClusterError(f"{host} did not take an alert: {why}.") from None


class Alerts(JobHandle):
    """A run or a sweep whose user is told of each thing once."""

    tick_s = 1.0

    def __init__(self, folder: RunFolder, address: str) -> None:
        super().__init__(folder)
        self.address, self.since, self.broken = address, folder.since, False
        self.title = str(folder.origin().experiment).rpartition("/")[2]
        self.run = RunState()
        self.gone = self.begin = inf  # since when no teacher is left; of what is looked at
        self.figures: Mapping[str, float] = {}  # at its begin
        self.told: dict[str, float] = {}  # when, by what

    def follow(self) -> None:
        """Until its end."""
        for news in self._news():
            for event in news:
                self.see(event)
            self.look(time.time())
        if self.state == "lost":  # who has killed it may say so in a moment
            time.sleep(PATIENCE_S)
        status = self.status
        self.tell(status.state or "deleted", words_of(status), time.time())

    def see(self, event: Event) -> None:
        """One event; `look` sees what none says."""
        before, step = self.run.now, self.run.now.step
        self.run.see(event)
        match event:
            case AllTeachersLost() if event.time >= self.since:
                self.gone = event.time
            case TeacherJoined() | RunStarted():
                self.gone = inf
            case EpochDone() if event.time >= self.since and self.run.started:
                data = self.run.started.dataset
                classes, images = (int(str(data[key])) for key in ("classes", "validation"))
                self._learning(event, classes, images)
            case StepLogged():
                self.gone, seconds = inf, event.time - self.begin
                if self.run.now is not before or event.step < step:
                    seconds = -inf  # nothing to compare with
                if not 0 <= seconds < _STARVES_S:
                    slow = bottleneck_of(seconds, event.figures, self.figures)
                    self.begin, self.figures = event.time, event.figures
                    if slow is not None and slow.starved >= _STARVES:
                        self.tell("starves", slow.sentence(), event.time)

    def look(self, now: float) -> None:
        if (waits := now - self.gone) >= _STARVES_S:
            words = f"No teacher is left; the student has waited for {waits:.0f} s."
            self.tell("starves", words, now)

    def _learning(self, event: EpochDone, classes: int, images: int) -> None:
        known = [top1 for _, top1 in self.run.newest.curves.get((TOP1, "student"), ())]
        if len(known) < _EPOCHS or min(classes, images) < 2:
            return
        guess, best, last = 100 / classes, max(known), max(known[-_EPOCHS:])
        if last <= max(guessed(guess, images), (best + guess) / 2):
            words = f"{event.member}: for {_EPOCHS} epochs top-1 on validation is {last:.1f} % at "
            words += (
                f"most, it was {best:.1f} % at best; a guess is right in {guess:.1f} %."
            )
            self.tell("stops learning", words, event.time, str(event.member))

    def tell(self, what: str, text: str, at: float, of: str = "") -> None:
        """Once of something, else once an hour; nothing of sessions before this one."""
        before = self.told.get(what + of, -inf)
        if at < self.since or at - before < (inf if of else _AGAIN_S):
            return
        self.told[what + of] = at
        if what in ("starves", "stops learning"):  # terminal and notebook show it, too
            warn(self.folder, f"{what}: {text}")
        said = (f"{self.title}: {what}", f"{self.id}: {text}")
        try:
            send(self.address, *(visible(" ".join(one.split())) for one in said))
        except ClusterError as error:
            if not self.broken:
                warn(self.folder, f"{error} The run goes on; to try: kdlab doctor --alert")
            self.broken = True


def words_of(status: RunStatus) -> str:
    """Figures and verdict of what has ended, or why it has none; without paths and addresses."""
    result: Any = status.result or {}
    if not result:
        why = status.error or "its process was ended from outside, or the machine went down"
        return short(re.sub(r"\S*[/\\]\S*", "...", why.partition("\n")[0]))
    figures = {key: result.get(key) for key in ("student_top1", "teacher_top1")}
    figures |= (result.get("best") or {}).get("values") or {}  # of a sweep
    figures["seconds"] = result.get("wall_seconds")
    said = [f"{key} {number(value)}" for key, value in figures.items() if value is not None]
    return f"{', '.join(said)}. {(result.get('verdict') or {}).get('sentence', '')}".strip()


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
        warn(folder, f"nobody is alerted: {error}")


if __name__ == "__main__":
    main()
