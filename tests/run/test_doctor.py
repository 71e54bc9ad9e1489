"""`kdlab doctor`: each finding, and its advice where something is wrong."""

from importlib.metadata import PackageNotFoundError

import pytest
from http_site import Site

from kdlab.run import doctor, port_audit
from kdlab.run.port_audit import OpenPort


@pytest.fixture(autouse=True)
def machine(monkeypatch, elsewhere):
    """No process listens and there are no runs."""
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "home"))
    monkeypatch.setattr(port_audit, "listening", lambda: iter(()))


def finding_of(what):
    (match,) = [f for f in doctor.examine() if f["what"] == what]
    return match


def test_all_is_well_here():
    findings = doctor.examine()
    named = {finding["what"] for finding in findings}
    assert named >= {"Python", "torch", "mlflow", "GPU", "machine", "shared memory"}
    assert all(finding["advice"] == "" for finding in findings if finding["state"] == "ok")
    assert all(finding["advice"] for finding in findings if finding["state"] != "ok")
    assert finding_of("Python")["state"] == "ok"
    assert finding_of("ports")["found"] == "no process of kdlab listens now"
    assert finding_of("what kdlab keeps")["found"] == "for you alone"
    table = doctor.printed(findings)
    assert all(finding["what"] in table for finding in findings)


def test_what_is_long_goes_on_in_the_next_lines_and_a_command_in_one_of_its_own():
    long = doctor._finding("ports", False, "a port that answers " * 9, "chmod go= /runs")
    _, *lines = doctor.printed([long]).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    assert {line[: len("ports  missing  ")].strip() for line in lines[1:]} == {""}
    assert lines[-1].split("  ")[-1] == "chmod go= /runs"


def test_a_package_that_is_missing_is_said_with_how_to_get_it(monkeypatch):
    def version(name):
        if name == "timm":
            raise PackageNotFoundError(name)
        return "2.13.0+cpu" if name == "torch" else "1.0"

    monkeypatch.setattr(doctor, "version", version)
    assert finding_of("timm") == {
        "what": "timm", "state": "missing", "found": "not installed",
        "advice": "pip install timm",
    }  # fmt: skip
    assert finding_of("torch")["state"] == "missing"
    assert "install another version" in finding_of("torch")["advice"]
    assert finding_of("optuna") == {
        "what": "optuna", "state": "ok", "found": "1.0", "advice": "",
    }  # fmt: skip


def test_what_only_slows_is_limited(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert finding_of("redis-server")["state"] == "limited"
    little = doctor.psutil.virtual_memory()._replace(available=2**30)
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: little)
    assert finding_of("machine")["state"] == "limited"
    assert "1.0 GiB free" in finding_of("machine")["found"]
    monkeypatch.setattr(doctor.os, "access", lambda path, how: False)
    assert finding_of("shared memory")["found"] == "no /dev/shm"


def test_a_folder_that_cannot_be_written_names_its_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("KDLAB_RUNS", str(tmp_path / "far" / "runs"))
    assert finding_of("folder for runs")["state"] == "ok"  # it can be made
    monkeypatch.setattr(doctor.os, "access", lambda path, how: False)
    finding = finding_of("folder for runs")
    assert finding["state"] == "missing"
    assert str(tmp_path / "far" / "runs") in finding["found"]
    assert finding["advice"] == "set KDLAB_RUNS to a folder that can be written"


def test_a_file_where_a_folder_should_be_is_missing(monkeypatch, elsewhere):
    (elsewhere / "file").touch()
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "file"))
    finding = finding_of("folder for data and teachers")
    assert finding["state"] == "missing"
    assert "set KDLAB_HOME" in finding["advice"]


def test_open_ports_are_said_by_who_can_reach_them(monkeypatch):
    ports = [
        OpenPort(11, "kdlab.cluster.reader", "127.0.0.1", 4000, "asks for a certificate"),
        OpenPort(12, "kdlab.cluster.scheduler", "0.0.0.0", 4001, ""),
    ]
    monkeypatch.setattr(port_audit, "listening", lambda: iter(ports))
    guarded = finding_of("port 4000, cluster.reader")
    assert guarded["found"] == "asks for a certificate (users of this machine)"
    assert guarded["state"] == "ok"
    opened = finding_of("port 4001, cluster.scheduler")
    assert opened["state"] == "limited"
    assert opened["found"] == "ANSWERS ANYBODY among users of the network (process 12)"
    assert "certificates" in opened["advice"]


def test_what_lies_before_others_eyes_is_closed_by_a_command(elsewhere, monkeypatch):
    monkeypatch.setenv("KDLAB_HOME", str(elsewhere / "home"))
    (elsewhere / "runs" / "a").mkdir(parents=True)
    (elsewhere / "runs").chmod(0o755)
    (elsewhere / "runs" / "a").chmod(0o755)
    finding = finding_of("what kdlab keeps")
    text = f"others may read 1, such as {elsewhere / 'runs' / 'a'}"
    assert (finding["state"], finding["found"]) == ("limited", text)
    assert finding["advice"] == f"chmod go= {elsewhere / 'runs'}"


def test_where_alerts_go_is_said_by_the_host_alone_and_one_is_tried(monkeypatch):
    monkeypatch.delenv("KDLAB_WEBHOOK", raising=False)
    assert finding_of("alerts")["found"] == "off"
    site = Site()
    monkeypatch.setenv("KDLAB_WEBHOOK", site.url("/secret"))
    assert finding_of("alerts") == {
        "what": "alerts", "state": "ok", "found": "go to 127.0.0.1", "advice": "",
    }  # fmt: skip
    assert site.posted == []
    (finding,) = [f for f in doctor.examine(alert=True) if f["what"] == "alerts"]
    assert finding["found"] == "go to 127.0.0.1, which took one"
    site.close()
    (finding,) = [f for f in doctor.examine(alert=True) if f["what"] == "alerts"]
    assert (finding["state"], "secret" in str(finding)) == ("missing", False)
    assert "127.0.0.1 did not take an alert" in finding["found"]
