"""Alerts of a run: what is sent, once, and to which host; from logs written by hand."""

import contextlib
import json
import os
import signal

import psutil
import pytest
from http_site import Site
from tests_support import event, hold, until

import kdlab
from kdlab.config.credentials import webhook
from kdlab.errors import BadInput, ClusterError
from kdlab.events.log import EventLog, read_all
from kdlab.experiment.folder import RunFolder, RunStatus
from kdlab.run.handle import alerts as module
from kdlab.run.handle.alerts import Alerts, request, send, summary_of

SECRET = "/services/T0/B0/secret"


@pytest.fixture
def site(monkeypatch):
    server = Site()
    monkeypatch.setenv("KDLAB_WEBHOOK", server.url(SECRET))
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "runs" / "r1")
    run.path.mkdir(parents=True)
    run.write_origin("edl/mine", "abc")
    run.write_status(state="running", created=1000.0)
    EventLog(run.events).close()
    return run


@pytest.fixture
def recorded(folder, monkeypatch):
    """The alerts of the folder, and a list of what they send."""
    sent = []
    monkeypatch.setattr(module, "send", lambda address, *words: sent.append(words))
    return Alerts(folder, "https://h/x"), sent


def started(**facts):
    dataset = {"classes": 10, "validation": 500} | facts
    return event(
        "run_started", 1000.0, None, run_id="r1", experiment="mine", dataset=dataset
    )


def step(time, number, starved_s, **waits):
    """A step of a served student that has waited for `starved_s` seconds so far."""
    waits = {"queued_s": 1.0 * number, "views_s": 0.0, "computed_s": 9.0 * number} | waits
    figures = {"starved_s": starved_s, "wire_s": 0.0} | waits
    return event("step_logged", time, step=number, of_steps=99, loss=1.0, **figures)


def epochs(*top1):
    for number, percent in enumerate(top1, 1):
        facts = {"epoch": number, "of_epochs": 9, "validation_top1": percent}
        yield event("epoch_done", 1000.0 + number, **facts)


# The message for each host


def test_each_host_gets_what_it_takes():
    title, text = "mine: failed", "r1: <!channel> 5 & @everyone"
    slack = request("https://hooks.slack.com/services/x", title, text)
    assert json.loads(slack.data) == {
        "text": "mine: failed\nr1: &lt;!channel&gt; 5 &amp; @everyone"
    }
    discord = request("https://discord.com/api/webhooks/x", title, text)
    assert json.loads(discord.data) == {
        "content": f"{title}\n{text}", "allowed_mentions": {"parse": []},
    }  # fmt: skip
    ntfy = request("https://ntfy.sh/topic", "größe: failed", text)
    assert (ntfy.data.decode(), ntfy.get_header("Title")) == (text, "gr??e: failed")
    plain = request("https://example.org/hook", title, text)
    assert json.loads(plain.data) == {"title": title, "text": text}
    assert {posted.get_method() for posted in (slack, discord, ntfy, plain)} == {"POST"}


@pytest.mark.parametrize(
    "address",
    ["http://example.org/x", "ftp://h/x", "file:///etc/passwd", "hooks.slack.com/x",
     "https://", "http://127.0.0.1.example.org/x", "http://localhost@example.org/x",
     "http://[", "https://h:abc/x"],
)  # fmt: skip
def test_only_https_is_an_address_or_this_machine(monkeypatch, address):
    monkeypatch.setenv("KDLAB_WEBHOOK", address)
    with pytest.raises(BadInput, match="KDLAB_WEBHOOK is no https:// address") as refused:
        webhook()
    assert address == "https://" or address not in str(refused.value)


def test_the_address_may_stand_in_the_file_of_secrets(monkeypatch, tmp_path):
    path = tmp_path / "secrets"
    monkeypatch.setenv("KDLAB_SECRETS", str(path))
    monkeypatch.delenv("KDLAB_WEBHOOK", raising=False)
    assert webhook() is None
    path.write_text("redis=x\n")
    path.chmod(0o600)
    assert webhook() is None
    path.write_text("redis=x\nKDLAB_WEBHOOK = https://h/a=b\n")
    assert webhook() == "https://h/a=b"
    path.chmod(0o644)
    with pytest.raises(BadInput, match="no other user may read"):
        webhook()


def test_it_is_posted_and_a_redirect_is_not_followed(site):
    send(webhook(), "mine: finished", "r1: 90 %")
    (path, head, body) = site.posted.pop()
    assert (path, head["Content-Type"]) == (SECRET, "application/json")
    assert json.loads(body) == {"title": "mine: finished", "text": "r1: 90 %"}
    for code in (301, 302, 303, 307, 308):
        site.answers_posts = code
        with pytest.raises(
            ClusterError, match=rf"127\.0\.0\.1 did not take an alert: {code}\."
        ):
            send(webhook(), "a", "b")
    assert {path for path, _, _ in site.posted} == {SECRET}
    assert site.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:1/secret",
        "http://u:secret@127.0.0.1/x",
        "http://127.0.0.1/secret\n",
    ],
)
def test_why_it_was_not_taken_never_has_the_address(address):
    with pytest.raises(ClusterError, match="did not take an alert") as refused:
        send(address, "a", "b")
    assert "secret" not in str(refused.value)


# Which events send an alert


def test_a_starving_student_is_told_once_an_hour(recorded):
    alerts, sent = recorded
    alerts.on_event(started())
    alerts.on_event(event("member_started", 1000.0, source="served"))
    for number in range(60):  # it waits for half of its time, and 10 % in the first minutes
        at = 100.0 * number
        starved = 10.0 * number if number < 4 else 40.0 + 60.0 * (number - 4)
        alerts.on_event(step(1000.0 + at, number, starved))
    assert [title for title, _ in sent] == ["mine: starves"] * 2
    assert (
        "r1: Teachers are the bottleneck: the student waits 60% of its time" in sent[0][1]
    )
    assert "One more teacher would help" in sent[0][1]


def test_a_student_that_is_the_slow_side_is_told_to_nobody(recorded):
    alerts, sent = recorded
    alerts.on_event(started())
    for number in range(30):
        alerts.on_event(step(1000.0 + 100 * number, number, 20.0 * number))
    alerts.on_event(step(5000.0, 2, 4000.0))  # back at a checkpoint: nothing to compare
    assert sent == []


def test_a_student_whose_teachers_are_gone_starves_though_nothing_happens(recorded):
    alerts, sent = recorded
    alerts.on_event(started())
    alerts.on_event(event("all_teachers_lost", 2000.0))
    alerts.update(2299.0)
    assert sent == []
    for now in (2300.0, 2301.0, 5000.0):
        alerts.update(now)
    words = "r1: No teacher is left; the student has waited for 300 s."
    assert sent == [("mine: starves", words)]
    alerts.on_event(event("teacher_joined", 5001.0, name="t1"))
    alerts.update(99_999.0)
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("top1", "is_told"),
    [
        ([10.0, 9.0, 12.0, 11.0, 13.0], True),  # guessing, as far as 500 images tell
        ([10.0, 9.0, 12.0, 11.0], False),  # so far
        ([10.0, 9.0, 12.0, 11.0, 15.0], False),
        ([50.0, 90.0, 40.0, 30.0, 30.0, 20.0, 30.0], True),  # half of it is gone
        ([50.0, 90.0, 40.0, 30.0, 30.0, 60.0, 30.0], False),
        ([50.0, 90.0, 80.0, 85.0, 80.0, 70.0, 75.0], False),
        ([None] * 9, False),
    ],
)
def test_who_learns_nothing_or_forgets_is_told_once(recorded, top1, is_told):
    alerts, sent = recorded
    alerts.on_event(started())
    alerts.on_event(event("member_started", 1000.0, source="none"))
    for epoch in epochs(*top1, *top1[-1:] * 3 * is_told):
        alerts.on_event(epoch)
    assert [title for title, _ in sent] == ["mine: stops learning"] * is_told
    assert all("a guess is right in 10.0 %" in text for _, text in sent)


def test_a_log_that_says_odd_things_tells_nothing(recorded):
    alerts, sent = recorded
    alerts.since = 9999.0  # this session's start: the events are older
    for odd in ({"classes": "ten"}, {"validation": None}):
        alerts.on_event(started(**odd))
        for epoch in epochs(*[10.0] * 6):
            alerts.on_event(epoch)
    alerts.since = 1000.0
    alerts.on_event(started(classes=0, validation=0))
    for epoch in epochs(*[10.0] * 6):
        alerts.on_event(epoch)
    assert sent == []


def test_terminal_and_notebook_show_it_too(recorded, folder):
    alerts, _ = recorded
    alerts.alert("starves", "No teacher is left.", 2000.0)
    (warned,) = read_all(folder.events)
    assert warned.text() == "warning: starves: No teacher is left."


def test_what_an_earlier_session_did_is_told_to_nobody(recorded):
    alerts, sent = recorded
    alerts.alert("starves", "No teacher is left.", 999.0)
    assert sent == []


def test_teachers_that_were_gone_before_a_resume_are_no_news(recorded):
    alerts, sent = recorded
    alerts.on_event(started())
    alerts.on_event(event("all_teachers_lost", 900.0))
    alerts.update(5000.0)
    alerts.on_event(event("all_teachers_lost", 5000.0))
    alerts.on_event(started())  # its process was killed, and is there again
    alerts.update(9000.0)
    assert sent == []


def test_an_alert_that_is_not_taken_is_a_warning_once(folder, site):
    site.answers_posts = 500
    alerts = Alerts(folder, webhook())
    alerts.alert("finished", "a", 2000.0)
    alerts.alert("failed", "b", 2000.0)
    (warned,) = read_all(folder.events)
    assert "127.0.0.1 did not take an alert: 500. The run continues" in warned.message
    assert SECRET not in warned.message
    assert len(site.posted) == 2


# How it ended


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (RunStatus(state="lost"),
         "its process was ended from outside, or the machine went down"),
        (RunStatus(state="failed", error="ValueError: in /home/me/x and tls://u:p@h:1, 5 \nLog: y"),
         "ValueError: in ... and ... 5 "),
        (RunStatus(state="finished", result={
            "student_top1": 91.25, "teacher_top1": None, "wall_seconds": 12.0,
            "verdict": {"sentence": "It helped."}, "run_dir": "/home/me"}),
         "student_top1 91.25, seconds 12. It helped."),
        (RunStatus(state="finished", result={
            "best": {"values": {"validation_top1": 88.0}}, "wall_seconds": 9.0, "verdict": None}),
         "validation_top1 88, seconds 9."),
    ],
)  # fmt: skip
def test_an_end_has_its_figures_or_why_and_no_paths(status, words):
    assert summary_of(status) == words


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_an_end_is_told_and_then_its_process_ends(recorded, folder, state):
    alerts, sent = recorded
    result = {"student_top1": 91.25} if state == "finished" else None
    folder.write_status(state=state, error=None if result else "no", result=result)
    alerts.follow()
    assert sent == [(f"mine: {state}", "r1: student_top1 91.25." if result else "r1: no")]


def test_one_that_was_killed_is_told_and_who_killed_it_may_say_so(
    recorded, folder, monkeypatch
):
    alerts, sent = recorded
    hold(folder)()  # its process came and went
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    alerts.follow()
    assert sent[0][0] == "mine: lost"
    monkeypatch.setattr(
        module.time, "sleep", lambda _: folder.write_status(state="stopped")
    )
    alerts.sent.clear()
    alerts.follow()
    assert sent[1][0] == "mine: stopped"


def test_an_address_that_is_none_is_a_warning_of_the_run(folder, monkeypatch):
    monkeypatch.setenv("KDLAB_WEBHOOK", "http://example.org")
    monkeypatch.setattr(module.sys, "argv", ["alerts", str(folder.path)])
    monkeypatch.setattr(module.os, "nice", lambda _: None)
    module.main()
    (warned,) = read_all(folder.events)
    assert "No alerts are sent: KDLAB_WEBHOOK is no https:// address" in warned.message


@pytest.mark.processes("a run whose every process is killed: who outlives it tells")
def test_the_end_of_a_run_is_told_and_so_is_that_of_one_killed_with_all_its_processes(
    site, elsewhere
):
    spec = {"tracking.enabled": False, "train.epochs": 2}
    run = kdlab.load("smoke/none", spec).start(lambda line: None).wait(timeout_s=600)
    until(lambda: site.posted)
    message = json.loads(site.posted.pop()[2])
    assert message["title"] == "none: finished"
    top1 = f"{run.result['student_top1']:.4g}"
    assert message["text"].startswith(f"{run.id}: student_top1 {top1}, seconds ")
    long = kdlab.load("smoke/none", spec | {"train.epochs": 5000}).start(lambda line: None)
    until(lambda: any(e.KIND == "step_logged" for e in long.events()))
    os.killpg(long.folder.process().pid, signal.SIGKILL)
    until(lambda: site.posted)
    assert json.loads(site.posted.pop()[2])["title"] == "none: lost"
    left = [p for p in psutil.process_iter() if str(elsewhere) in " ".join(_words(p))]
    assert psutil.wait_procs(left, 60)[1] == []


def _words(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
