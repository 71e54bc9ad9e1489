"""Files that kdlab keeps, damaged in every way: a sentence with their name, and no hang."""

import asyncio
import json
import logging
import os
import signal
import socket

import pytest
from safetensors.torch import save_file
from tests_support import student_card

from kdlab.changes.change import ChangeReader
from kdlab.checks.teacher import TeacherMeasure
from kdlab.cluster.coordination.lease_store import InFile, StoredRows
from kdlab.cluster.reader.ring import Channel
from kdlab.cluster.transport import security
from kdlab.codec import MessageError, from_json
from kdlab.config import seal
from kdlab.config.home import find_as, read_as, recall_as
from kdlab.errors import BadInput, KdlabError
from kdlab.events.log import read_all
from kdlab.experiment.folder import RunFolder
from kdlab.methods.blockwise.planning import Identity, KeptPlan, read_profile
from kdlab.methods.ensemble.exchange import ModelFile, take_momentum
from kdlab.methods.ensemble.round_driver import RoundCheckpoint
from kdlab.methods.puzzle.chosen import MeasuredChoice
from kdlab.methods.student.method import ranks_before
from kdlab.models.engines import remembered
from kdlab.models.model import read_card
from kdlab.models.saved import SavedModel
from kdlab.run.handle.marks import Marks
from kdlab.run.handle.run import Run
from kdlab.run.outputs import comparison
from kdlab.run.ui import _newest_experiment
from kdlab.testing import replay
from kdlab.tracking.in_mlflow import MlflowLocation
from kdlab.train import checkpoint
from kdlab.train.position import LoopFacts
from kdlab.train.result import MemberResult
from kdlab.train.teacher import _Trained

ADDRESS = "tls://127.0.0.1:9999"
NAN, HERE = float("nan"), Identity("here", "two networks", 32)
BLOCK = {"teacher_s": {"32": NAN}, "student_s": {"32": 0.1}}
PROFILE = {"identity": {"machine": "here", "model": "two networks", "batch": 32}}
PROFILE |= {"types": {"a": [BLOCK]}, "devices": ["a"]}
STAGE = {"first": 0, "stop": 1, "devices": [5], "rows": [8]}
PLAN = {"programme": {"name": "tr", "plans": [{"batch": 8, "stages": [STAGE]}]}}
PLAN["programme"] |= {"predicted_s": 1.0, "why": ""}
PLAN |= {
    "table": "",
    "ideal_s": {},
    "devices": ["cpu"],
}  # of one device, and names the sixth


async def leases(path):
    store = InFile(path)
    rows = await store.load()
    await store.close()
    return None if rows == StoredRows() else rows


def moved(path, to, read):
    """Move the file to where kdlab keeps it, and read it there."""
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)
    return read()


# name of the file: how it is read, and its content with an odd number.
# These hold what is known nowhere else: damage is an error ...
SAID = {
    "profile.json": (lambda at: read_profile(at, HERE), PROFILE),
    "choice.json": (lambda at: find_as(MeasuredChoice, at), {"teacher_ms": NAN}),
    "direction.json": (
        lambda at: RoundCheckpoint.read(at.parent),
        {"round": -1, "latest": [], "account": {}, "looks": []}),
    "ranks.json": (lambda at: ranks_before(RunFolder(at.parent)), {"ranks": 0}),
    "facts.json": (
        lambda at: _Trained.read(at.parent),
        dict.fromkeys(("validation_top1", "test_top1", "test_top5", "train_seconds",
                       "samples_per_second"), NAN) | {"epoch": 1, "test": {}}),
    "result.json": (lambda at: MemberResult.read(at.parent), {"member": "a", "steps": -1}),
    "fence.json": (lambda at: checkpoint.raise_fence(at.parent), {"number": -3}),
    "state.json": (lambda at: read_as(LoopFacts, at), {"position": {"epoch": -1}}),
    "meta.json": (lambda at: seal.check(at.parent, hashes=False), {"files": {"a": [NAN, ""]}}),
    "tracking.json": (lambda at: MlflowLocation.read(at.parent), {"offset": -5}),
    "student.json": (read_card, student_card(num_classes=10**9)),
    "config.json": (
        lambda at: SavedModel(place=str(at.parent))._facts, {"architecture_": "resnet18"}),
}  # fmt: skip
# ... and these are made anew: damage is a line in the log.
ANEW = {
    "plan.json": (lambda at: recall_as(KeptPlan, at, "It is made anew."), PLAN),
    "measured.json": (lambda at: recall_as(TeacherMeasure, at, "RepeatRun."), {"images": -1}),
    "leases.json": (
        lambda at: asyncio.run(leases(at)),
        {"student": {}, "pool": {}, "teacher": {"a": {
            "teacher": "a", "state": "waiting", "renewed_at": 0.0, "ttl_s": NAN}}}),
    "note.json": (
        lambda at: moved(at, security._note(ADDRESS), lambda: security.load_credentials(ADDRESS)),
        {"ca": 7}),
    "marks.json": (lambda at: recall_as(Marks, at, "It has none."), {"tags": ["a b"]}),
    "engines.json": (
        lambda at: moved(at, remembered._path({}), lambda: remembered.recall({})),
        [{"engine": "eager", "precision": "fp32", "rate": NAN}]),
}  # fmt: skip


def a_pipe(path):
    os.mkfifo(path)


def a_device(path):
    path.symlink_to("/dev/zero")


def a_gigabyte(path):
    path.write_bytes(b"[")
    os.truncate(path, 10**9)


def a_folder(path):
    path.mkdir()


DAMAGES = {
    "empty": b"",
    "torn": b'{"a": [1, ',
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 500 + b"1" + b"}" * 500,
    "a list": b"[7]",
    "a word": b'"x"',
    "no number": b"NaN",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "odd bytes": b"\xff\x00",
    **{made.__name__: made for made in (a_pipe, a_device, a_gigabyte, a_folder)},
}


def put(path, damage):
    if callable(damage):
        damage(path)
    else:
        path.write_bytes(damage)
    return path


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def ends():
    """One that waits for ever is ended."""
    signal.alarm(30)
    yield
    signal.alarm(0)


def ways(readers):
    """Each of these files with each damage, and with an odd number."""
    for name, (read, odd) in readers.items():
        for kind, damage in {**DAMAGES, "odd": json.dumps(odd).encode()}.items():
            yield pytest.param(name, read, damage, id=f"{name} {kind}")


@pytest.mark.parametrize(("name", "read", "damage"), ways(SAID))
def test_a_damaged_file_is_a_sentence_with_its_name(tmp_path, name, read, damage):
    with pytest.raises(KdlabError, match=name) as refused:
        read(put(tmp_path / name, damage))
    assert 20 < len(str(refused.value)) < 500


@pytest.mark.parametrize(("name", "read", "damage"), ways(ANEW))
def test_a_damaged_file_that_is_made_anew_is_a_line(tmp_path, caplog, name, read, damage):
    with caplog.at_level(logging.WARNING, "kdlab"):
        assert read(put(tmp_path / name, damage)) is None
    looked_at_first = name == "note.json" and callable(damage) and damage is not a_gigabyte
    assert looked_at_first or "cannot be read" in caplog.text


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_log_or_journal_says_nothing(tmp_path, damage):
    path = put(tmp_path / "a.jsonl", damage)
    assert read_all(path) == ChangeReader(path)() == []
    with pytest.raises(BadInput, match="no journal"):
        replay(path)


def test_lines_beside_a_damaged_one_are_read(tmp_path):
    lines = [
        b'{"event": "note", "message": "a"}',
        *map(bytes, (b"[" * 9_000, b"{", b"NaN")),
    ]
    lines += [b'{"event": "note", "message": "b"}', b'{"event": "note"']
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    assert [event.message for event in read_all(tmp_path / "events.jsonl")] == ["a", "b"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_result_costs_one_row(tmp_path, caplog, damage):
    """It was a traceback of a comparison of any number of runs."""
    members = tmp_path / "members" / "served"
    for path in (tmp_path / "result.json", members / "seed0" / "result.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, damage)
    assert comparison._results(Run(RunFolder(tmp_path))) == []
    assert "Those of its members are shown." in caplog.text
    assert callable(damage) or "It is left out." in caplog.text


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_newest_experiment_is_one_that_can_be_read(elsewhere, damage):
    for name in ("a", "b"):
        (elsewhere / "runs" / name).mkdir(parents=True)
    good = elsewhere / "runs" / "a" / "tracking.json"
    good.write_text('{"experiment_id": "7"}')
    os.utime(good, (0, 0))
    put(elsewhere / "runs" / "b" / "tracking.json", damage)
    assert _newest_experiment().startswith("/7/runs?")


BYTES = {said: damage for said, damage in DAMAGES.items() if isinstance(damage, bytes)}


@pytest.mark.parametrize("damage", BYTES.values(), ids=BYTES)
def test_a_damaged_message_is_one_error(tmp_path, damage):
    with pytest.raises(MessageError):
        from_json(dict[str, object], damage)
    ours, theirs = socket.socketpair()
    theirs.sendall(damage[:9_000] + b"\n")
    with pytest.raises(MessageError):
        Channel(ours).receive(1.0)
    theirs.close()
    ours.close()
    file = ModelFile(0, str(tmp_path / "0.safetensors"), "", 0)
    if damage.isascii():
        save_file({}, tmp_path / "0.momentum", {"facts": damage.decode()})
        with pytest.raises(MessageError):
            take_momentum(file, None)


def test_what_is_sound_comes_back(tmp_path):
    path = tmp_path / "a.json"
    assert find_as(dict[str, int], path) is None
    path.write_text('{"\u00e9": 1}')
    assert find_as(dict[str, int], path) == read_as(dict[str, int], path) == {"\u00e9": 1}
    path.write_text(json.dumps({"a": [[]] * 1_000}))  # wide, not deep
    assert len(read_as(dict[str, list[object]], path)["a"]) == 1_000
    with pytest.raises(MessageError, match=r"b\.json is missing\. Make it\."):
        read_as(dict[str, int], tmp_path / "b.json", "Make it.")
