"""Run folders of somebody else, or damaged ones: words instead of tracebacks and signals."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from safetensors.torch import load_file
from tests_support import student_card, until

import kdlab
from kdlab.config.seal import hash_of
from kdlab.control.orders import ChangeSettings, OrderReader
from kdlab.control.steering import Steering
from kdlab.errors import KdlabError, WeightsError
from kdlab.events.log import read_all
from kdlab.experiment.folder import RunFolder
from kdlab.models.model import read_card
from kdlab.run.handle.run import Run, made

NAN, INF = float("nan"), float("inf")
DEEP = "[" * 100_000


def written(folder, **facts):
    """A status as whoever knows the format would write it: with its seal."""
    body = {"state": "running", "created": time.time(), **facts}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps(body | {"seal": hash_of(body)}))
    return RunFolder(folder)


@pytest.mark.parametrize(
    "facts",
    [{"pid": -1}, {"pid": 0}, {"pid": 2**40}, {"created": NAN}, {"begin": INF},
     {"process_started": NAN}, {"created": 1e300}, {"ended": -1.0}, {"state": "odd"},
     {"pid": "1"}, {"state": 7}, {"result": [1]}],
    ids=str,
)  # fmt: skip
def test_well_formed_nonsense_is_a_damaged_status(tmp_path, facts):
    """`pid: -1` or `created: NaN` was a traceback of `kdlab runs`, for all runs."""
    folder = written(tmp_path / "a", **facts)
    status = folder.raw_status()
    assert status.state == "unreadable"
    assert "is damaged" in status.error


@pytest.mark.parametrize(
    "last",
    [{}, {"state": {"a": 1}}, {"state": "odd"}, {"state": "finished", "time": "x"},
     {"state": "finished", "time": NAN}, {"state": "finished", "time": 1e300}],
    ids=str,
)  # fmt: skip
def test_odd_last_words_of_a_log_are_of_one_run_alone(elsewhere, last):
    """They were tracebacks of every command, as all runs are sorted by their time."""
    folder = written(elsewhere / "runs" / "a", pid=-1)
    (folder.path / "experiment.json").write_text("{}")
    line = {"event": "run_done", "time": 1.0, "result": None, "error": None} | last
    folder.events.write_text(json.dumps(line) + "\n")
    assert folder.raw_status().state == "unreadable"
    assert "unreadable" in repr(kdlab.runs())


def test_a_status_without_a_seal_is_not_believed(tmp_path):
    folder = written(tmp_path / "a")
    body = json.loads((folder.path / "status.json").read_text())
    del body["seal"]
    (folder.path / "status.json").write_text(json.dumps(body))
    assert folder.raw_status().state == "unreadable"


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 50_000, "[]", "null", "{", "\x00"])
@pytest.mark.parametrize("name", ["status.json", "experiment.json", "components.json"])
def test_what_is_no_object_is_said_with_its_file(tmp_path, name, text):
    """Deeply nested JSON was a RecursionError."""
    folder = written(tmp_path / "a")
    (folder.path / name).write_text(text)
    if name == "status.json":
        assert folder.raw_status().state == "unreadable"
    else:
        read = {"experiment.json": folder.origin, "components.json": folder.components}
        with pytest.raises(KdlabError, match=name):
            read[name]()


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path):
    folder = written(tmp_path / "a")
    (folder.path / "status.json").unlink()
    os.mkfifo(folder.path / "status.json")
    assert folder.raw_status().state == "unreadable"


def test_orders_are_of_their_types_and_ranges(tmp_path):
    """`lr_factor: -5` was taken, and a line without end of brackets ended the training."""
    path, good = tmp_path / "control.jsonl", {"lr_factor": 0.5}
    orders = [{"set": {"lr_factor": -5}}, {"set": {"lr_factor": NAN}}, {"set": [1]},
              {"set": {"lr_factor": "1"}}, {"set": good, "time": NAN}, {"set": good}]  # fmt: skip
    with path.open("w") as file:
        file.write(DEEP + "\n" + "null\n")
        for order in orders:
            line = {"time": 1.0, "event": "set", "member": "m"} | order
            file.write(json.dumps(line) + "\n")
    assert OrderReader(path)() == [ChangeSettings(time=1.0, member="m", set=good)]
    steering = Steering(path, "m")
    steering.look(now=True)
    assert steering.values == good


def looked_at(folder):
    """All that commands read of a run; words are what there may be."""
    run = Run(folder)
    assert str(run.status)
    assert repr(run)
    assert repr(kdlab.runs())
    for read in (folder.origin, folder.components, folder.resolved):
        with contextlib.suppress(KdlabError):
            read()
    with contextlib.suppress(KdlabError):
        read_all(folder.events)


def test_a_thousand_damaged_folders_are_words(tmp_path, monkeypatch, elsewhere):
    """And a thousand that are well formed are as they were."""
    runs = elsewhere / "runs"
    chance = random.Random(0)
    folder = made(kdlab.load("smoke/none"), "stopped")[0].path
    names = [
        "status.json",
        "experiment.json",
        "components.json",
        "spec.yaml",
        "events.jsonl",
    ]
    (folder / "events.jsonl").touch()
    before = {name: (folder / name).read_bytes() for name in names}
    for number in range(1000):
        name = names[number % len(names)]
        text = bytearray(before[name] or b"{}")
        for _ in range(chance.choice((1, 3, 30))):
            kind, at = chance.randrange(4), chance.randrange(len(text) + 1)
            if kind == 0:
                text[at : at + chance.randrange(1, 9)] = b""
            elif kind == 1:
                text[at:at] = chance.choice(
                    (b"{", b"[" * 5000, b"NaN", b"-1", b"\xff", b"\x00")
                )
            elif text[at : at + 1]:
                text[at] = chance.randrange(256)
        (folder / name).write_bytes(text)
        looked_at(RunFolder(folder))
        (folder / name).write_bytes(before[name])
        assert Run(RunFolder(folder)).state == "stopped"
    assert runs.is_dir()


def lives(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"


@pytest.mark.slow("a run, whose folder goes while it trains")
def test_a_run_ends_with_its_folder(kdlab_home, elsewhere):
    """It trained on unseen, made the folder anew as 0755, and no command knew it."""
    words = ["smoke/in_process", "train.epochs=100000", "tracking.enabled=false"]
    run = kdlab.load(*words).start(lambda line: None)
    until(lambda: [e for e in run.events() if e["event"] == "step"])
    processes = psutil.Process(run.status.pid).children(recursive=True)
    shutil.rmtree(run.path, ignore_errors=True)
    until(lambda: not any(lives(process.pid) for process in processes))


@pytest.mark.slow("two resumes at once, in processes of their own")
def test_of_two_resumes_one_trains_and_is_within_reach(kdlab_home, elsewhere):
    """The loser's number stood in the status: nobody could stop the other one."""
    words = ["smoke/in_process", "train.epochs=100000", "tracking.enabled=false"]
    run = kdlab.load(*words).start(lambda line: None)
    until(lambda: [e for e in run.events() if e["event"] == "step"])
    run.stop()
    assert run.wait().state == "stopped"
    command = [sys.executable, "-m", "kdlab", "resume", run.id, "--detach"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == [0, 2], said
    until(lambda: run.state == "running")
    until(lambda: len([e for e in run.events() if e["event"] == "resumed"]) == 1)
    run.stop()
    assert run.wait().state == "stopped"


def trainers(folder):
    """Processes that fill it: each a watchdog, and the one that it has forked."""
    found = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        words = " ".join(process.info["cmdline"] or ()).rstrip()
        if words.endswith(f" {folder}") and "kdlab.run.process.child" in words:
            found.append(process)
    pids = {process.pid for process in found}
    return [process for process in found if process.info["ppid"] not in pids]


@pytest.mark.nightly
@pytest.mark.slow
def test_resumes_stops_and_kills_in_any_order(kdlab_home, elsewhere):
    """Never two that train, the one always within reach, and the result of a quiet run."""
    words = ["smoke/none", "train.epochs=1500", "tracking.enabled=false",
             "train.checkpoint_every_steps=200", "train.evaluate_every=500"]  # fmt: skip
    quiet = kdlab.load(*words).start(lambda line: None).wait(timeout_s=600)
    chance = random.Random(7)
    run = kdlab.load(*words).start(lambda line: None)

    def resume():
        command = [sys.executable, "-m", "kdlab", "resume", run.id, "--detach"]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    for _ in range(int(os.environ.get("FAULTS", "10"))):
        asked = []
        for kind in chance.choices(("resume", "stop", "kill"), k=chance.choice((1, 2, 3))):
            if kind == "resume":
                asked.append(resume())
            else:
                getattr(run, kind)()
            time.sleep(chance.uniform(0, 0.5))  # some together, some after the other
        for process in asked:
            assert process.wait() in (0, 2)
        assert len(trainers(run.path)) <= 1
        if trainers(run.path):
            assert run.state in ("starting", "running", "finished")
        if run.state == "finished":
            break
    while run.state != "finished":
        resume().wait()
        run.wait(timeout_s=600)
    for key in ("student_top1", "samples_seen", "samples_lost", "samples_repeated"):
        assert run.result[key] == quiet.result[key]
    (one,), (two,) = (
        list(r.path.glob("members/*/*/student.safetensors")) for r in (quiet, run)
    )
    weights = [load_file(path) for path in (one, two)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


CARD = student_card(classes=[str(k) for k in range(10)], input={})


@pytest.mark.parametrize(
    "odd",
    [{"num_classes": 10**9}, {"num_classes": 0}, {"num_classes": "10"}, {"in_chans": -1},
     {"in_chans": 3}, {"mean": [NAN]}, {"std": [0.0]}, {"std": []}, {"mean": "x"},
     {"classes": ["one"]}, {"classes": [7] * 10}, {"model": "models/patch_net"},
     {"sha256": None}, {"input": []}, {"model": None}],
    ids=str,
)  # fmt: skip
def test_a_card_is_typed_and_in_its_ranges(tmp_path, odd):
    """`num_classes: 1e9` asked for 32 GB; other cards were tracebacks, or taken."""
    (tmp_path / "student.json").write_text(json.dumps(CARD))
    assert read_card(tmp_path / "student.safetensors")["in_chans"] == 1
    (tmp_path / "student.json").write_text(json.dumps(CARD | odd))
    with pytest.raises(WeightsError, match=r"student\.json, which says what the network"):
        read_card(tmp_path / "student.safetensors")


@pytest.mark.parametrize("text", [None, "", "[]", DEEP, '{"num_classes": 1e9}'])
def test_a_damaged_card_is_a_sentence(tmp_path, text):
    if text is not None:
        (tmp_path / "student.json").write_text(text)
    with pytest.raises(WeightsError, match="Export the student again"):
        read_card(tmp_path / "student.safetensors")
