"""A run whose files are damaged is named, and hurts no other run and no command."""

import contextlib
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests_support import examples, until

import kdlab
from kdlab.errors import BadInput, ClusterError, KdlabError, RunFailed
from kdlab.events.log import EventLog
from kdlab.events.runs import RunDone
from kdlab.experiment.folder import RunFolder, all_folders
from kdlab.run.handle.run import create_folder

FILES = ("status.json", "experiment.json", "spec.yaml", "components.json", "events.jsonl")


@pytest.fixture
def two(elsewhere):
    """Folders of two finished runs: one stays intact, the other will be damaged."""
    folders = []
    for _ in range(2):
        folder, _ = create_folder(kdlab.load("smoke/none"), "starting")
        result = {"student_top1": 12.5, "wall_seconds": 3.0}
        log = EventLog(folder.events)
        log.emit(RunDone(state="finished", result=result))
        log.close()
        folder.write_status(state="finished", exit_code=0, result=result)
        folders.append(folder)
    return folders


def test_a_new_run_is_for_its_owner_alone(two):
    assert stat.S_IMODE(two[0].path.stat().st_mode) == 0o700


def test_a_status_that_cannot_be_read_is_told_by_the_log(two):
    (two[1].path / "status.json").write_text("{")
    status = two[1].status()
    assert (status.state, status.exit_code) == ("finished", 0)
    assert status.result["student_top1"] == 12.5


def test_a_status_of_which_one_byte_is_another_is_not_believed(two):
    path = two[1].path / "status.json"
    raw = path.read_text()
    assert '"exit_code": 0' in raw
    path.write_text(raw.replace('"exit_code": 0', '"exit_code": 1'))
    assert two[1].status().exit_code == 0  # as the log tells


def test_a_run_under_way_is_known_although_its_status_is_damaged(two):
    folder = two[1]
    (folder.path / "status.json").write_text("{")
    with folder.held():
        assert folder.status().state == "running"
    assert folder.status().state == "finished"  # as the log tells, now that it is gone


def test_a_run_that_cannot_be_read_is_listed_as_such(two, kdlab_cli):
    intact, damaged = two
    (damaged.path / "status.json").write_text('{"state": 3}')
    damaged.events.unlink()
    code, out, err = kdlab_cli("runs")
    assert code == 0
    assert "unreadable" in out
    assert intact.run_id in out
    assert f"{damaged.run_id}: status.json in" in out
    with pytest.raises(RunFailed, match=r"status\.json in .* is damaged"):
        _ = kdlab.attach(damaged.run_id).result
    assert kdlab.attach(intact.run_id).result["student_top1"] == 12.5
    for words in (["stop", damaged.run_id], ["resume", damaged.run_id]):
        code, _, err = kdlab_cli(*words)
        assert (code, "Traceback" in err) in ((0, False), (2, False))
    damaged.write_status(state="running")  # its own process lives, and goes on
    assert damaged.raw_status().state == "running"


def test_what_it_was_made_of_is_named_when_damaged(two):
    for name in ("experiment.json", "spec.yaml", "components.json"):
        text = (two[1].path / name).read_text()
        (two[1].path / name).write_text("{[")
        read = {
            "experiment.json": two[1].origin,
            "spec.yaml": two[1].resolved,
            "components.json": two[1].components,
        }[name]
        with pytest.raises(BadInput, match=f"{name} in .* is damaged"):
            read()
        (two[1].path / name).write_text(text)


@settings(
    deadline=None,
    max_examples=examples(300),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
@pytest.mark.long
def test_whatever_is_damaged_no_command_fails_for_another_run(two, kdlab_cli, data):
    intact, damaged = two
    path = damaged.path / data.draw(st.sampled_from(FILES))
    raw = path.read_bytes()
    try:
        at = data.draw(st.integers(0, len(raw) - 1))
        junk = data.draw(st.one_of(st.binary(max_size=6), st.just(b"\xff"), st.just(b"[]")))
        path.write_bytes(raw[:at] + junk + raw[at + data.draw(st.integers(0, 40)) :])
        code, out, _ = kdlab_cli("runs")
        assert (code, intact.run_id in out, damaged.run_id in out) == (0, True, True)
        assert len(all_folders()) == 2
        assert kdlab.attach(intact.run_id).result["student_top1"] == 12.5
        run = kdlab.attach(damaged.run_id)
        assert run.id in repr(kdlab.runs())
        with contextlib.suppress(KdlabError):  # names it; anything else is a traceback
            _ = run.result
    finally:
        path.write_bytes(raw)


@pytest.mark.processes("whoever is first makes the run that all read")
def test_of_a_run_that_trained_all_but_what_is_damaged_can_be_read(taught, copied):
    run, result = copied(taught), taught.result
    (run.path / "status.json").write_text("{")
    until(lambda: run.state == "finished")  # it has just ended: its processes are gone soon
    reread = kdlab.attach(run.id).result  # as the log tells
    assert reread["runs"] == result["runs"]
    assert len(run.examine(most=10).ids) == 10
    spec = (run.path / "spec.yaml").read_text()
    (run.path / "spec.yaml").write_text("{[")
    with pytest.raises(BadInput, match=r"spec\.yaml in .* is damaged"):
        run.examine()
    assert kdlab.attach(run.id).result["runs"] == result["runs"]
    (run.path / "spec.yaml").write_text(spec)
    weights = run.path / "members" / "in_process" / "seed0" / "student.safetensors"
    *before, last = weights.read_bytes()
    weights.write_bytes(bytes([*before, last ^ 1]))
    images = run.test_images(1)
    with pytest.raises(KdlabError, match=r"student\.safetensors has sha256"):
        run.predict(images, member="in_process/seed0")
    assert run.predict(images, member="none/seed0")


def test_a_tracking_that_failed_is_said(two, kdlab_cli):
    why = "MLflow was not written to the end: its process ended by signal 9"
    two[1].write_status(tracking=why)
    _, out, _ = kdlab_cli("runs")
    assert f"{two[1].run_id}: {why}" in out
    assert kdlab.attach(two[1].run_id).result["tracking_error"] == why
    assert kdlab.attach(two[0].run_id).result["tracking_error"] is None


def test_a_folder_that_is_there_already_is_not_touched(elsewhere):
    """A sweep that continues finds the folder of its trial."""
    path = elsewhere / "there"
    path.mkdir()
    (path / "kept").write_text("mine")
    with pytest.raises(ClusterError, match="Nothing was started"):
        create_folder(kdlab.load("smoke/none"), "starting", path)
    assert (path / "kept").read_text() == "mine"


@pytest.mark.parametrize("damage", ["{", "[1, 2", "[]", '{"seal": 3}', "[" * 200])
def test_a_run_writes_its_end_over_a_damaged_status(tmp_path, damage):
    folder = RunFolder(tmp_path)
    folder.write_status(state="running")
    (tmp_path / "status.json").write_text(damage)
    folder.write_status(state="failed", exit_code=1, error="why")
    assert (folder.status().state, folder.status().error) == ("failed", "why")
