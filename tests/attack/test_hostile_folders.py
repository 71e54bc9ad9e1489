"""Run folders of somebody else, or damaged ones: words instead of tracebacks and signals."""

import collections
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from safetensors.torch import load_file
from tests_support import student_card, until

import kdlab
from kdlab.changes.change import Change, ChangeReader, SetValues
from kdlab.changes.queue import ChangeQueue
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.config.seal import hash_of
from kdlab.data.images import DataSpec
from kdlab.errors import KdlabError, NotFoundError, WeightsError
from kdlab.events.log import read_all
from kdlab.experiment.folder import ENDED, RunFolder
from kdlab.models.model import read_card
from kdlab.run.catalogue import described
from kdlab.run.handle.run import Run, create_folder

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
    [{"created": NAN}, {"begin": INF}, {"created": 1e300}, {"ended": -1.0},
     {"state": "odd"}, {"begin": "1"}, {"state": 7}, {"result": [1]}],
    ids=str,
)  # fmt: skip
def test_well_formed_nonsense_is_a_damaged_status(tmp_path, facts):
    """`created: NaN` was a traceback of `kdlab runs`, for all runs."""
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
    folder = written(elsewhere / "runs" / "a", begin=-1.0)
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


def test_changes_are_of_their_types_and_ranges(tmp_path):
    """`lr_factor: -5` was taken, and a line without end of brackets ended the training."""
    path, good = tmp_path / "control.jsonl", {"lr_factor": 0.5}
    lines = [{"set": {"lr_factor": -5}}, {"set": {"lr_factor": NAN}}, {"set": [1]},
              {"set": {"lr_factor": "1"}}, {"set": good, "time": NAN}, {"set": good}]  # fmt: skip
    with path.open("w") as file:
        file.write(DEEP + "\n" + "null\n")
        for change in lines:
            line = {"time": 1.0, "event": "set", "member": "m"} | change
            file.write(json.dumps(line) + "\n")
    assert ChangeReader(path)() == [SetValues(time=1.0, member="m", set=good)]
    queue = ChangeQueue(path, "m")
    queue.poll(now=True)
    assert queue.values == good


def looked_at(folder):
    """Read all that commands read of a run; the only errors may be those of kdlab."""
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
    """Each file is restored after its damage, and the folder is as before."""
    runs = elsewhere / "runs"
    chance = random.Random(0)
    folder = create_folder(kdlab.load("smoke/none"), "stopped")[0].path
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
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow("a run, whose folder goes while it trains")
def test_a_run_ends_with_its_folder(kdlab_home, elsewhere):
    """It trained on unseen, made the folder anew as 0755, and no command knew it."""
    words = ["smoke/in_process", "train.epochs=100000", "tracking.enabled=false"]
    run = kdlab.load(*words).start(lambda line: None)
    until(lambda: [e for e in run.events() if e.KIND == "step_logged"])
    processes = run.folder.family()
    shutil.rmtree(run.path, ignore_errors=True)
    until(lambda: not any(lives(process.pid) for process in processes))


@pytest.mark.slow("two resumes at once, in processes of their own")
def test_of_two_resumes_one_trains_and_is_within_reach(kdlab_home, elsewhere):
    """The loser's number stood in the status: nobody could stop the other one."""
    words = ["smoke/in_process", "train.epochs=100000", "tracking.enabled=false"]
    run = kdlab.load(*words).start(lambda line: None)
    until(lambda: [e for e in run.events() if e.KIND == "step_logged"])
    run.stop()
    assert run.wait().state == "stopped"
    command = [sys.executable, "-m", "kdlab", "resume", run.id, "--detach"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == [0, 2], errors
    until(lambda: run.state == "running")
    until(lambda: len([e for e in run.events() if e.KIND == "resumed"]) == 1)
    run.stop()
    assert run.wait().state == "stopped"


def trainers(folder):
    """Return the watchdogs of the processes that write into the folder."""
    processes = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        words = " ".join(process.info["cmdline"] or ()).rstrip()
        if words.endswith(f" {folder}") and "kdlab.run.process.child" in words:
            processes.append(process)
    pids = {process.pid for process in processes}
    return [process for process in processes if process.info["ppid"] not in pids]


def has_the_lock(process):
    """Return whether the process holds the lock of its folder, as /proc says of its files.

    The process that trains holds it from its start until all is written; it may take a while to
    end after that. Between fork and exec nobody holds it.
    """
    place = Path("/proc") / str(process.pid)
    with contextlib.suppress(OSError):  # gone, or gone in part
        for file in (place / "fd").iterdir():
            name = os.readlink(file).removesuffix(" (deleted)")
            facts = place / "fdinfo" / file.name
            if name.endswith("/lock") and "FLOCK" in facts.read_text():
                return True
    return False


class AnyOrder:
    """A run that commands in processes of their own begin, stop, kill and delete at once."""

    kinds = ("resume", "resume", "resume", "stop", "stop", "kill", "kill -9", "delete")

    def __init__(self, words, seed):
        self.words, self.chance = words, random.Random(seed)
        self.counts = collections.Counter()
        self.begin()

    def begin(self):
        self.counts["begun"] += 1
        self.run = kdlab.load(*self.words).start(lambda line: None)

    def resume(self):
        command = [sys.executable, "-m", "kdlab", "resume", self.run.id, "--detach"]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def signal_one(self):
        """Kill the watchdog or the trainer, as a kernel without memory does."""
        if family := self.run.folder.family():
            with contextlib.suppress(psutil.Error):
                self.chance.choice(family[:2]).kill()

    def delete(self):
        while self.run.path.exists():  # what is written meanwhile, too
            shutil.rmtree(self.run.path, ignore_errors=True)

    def some(self):
        """Run one to three of `kinds`, at once or one after the other."""
        asked = []
        for kind in self.chance.choices(self.kinds, k=self.chance.choice((1, 2, 3))):
            self.counts[kind] += 1
            if kind == "resume":
                asked.append(self.resume())
            elif kind == "kill -9":
                self.signal_one()
            else:
                {"stop": self.run.stop, "kill": self.run.kill, "delete": self.delete}[
                    kind
                ]()
            time.sleep(self.chance.uniform(0, 0.5))
        for process in asked:
            message = process.communicate()[1]
            assert process.returncode in (0, 2), message
            assert "Traceback" not in message

    def look(self):
        """At most one trains, and a stop reaches it; of what is deleted nothing is left."""
        path = self.run.path
        processes = trainers(path)
        holders = [process for process in processes if has_the_lock(process)]
        assert len(holders) <= 1, holders
        ending = {*processes} - {*holders}
        until(lambda: not ending & {*trainers(path)})
        if not path.exists():
            until(lambda: not trainers(path))
            assert not path.exists()
            with pytest.raises(NotFoundError):
                kdlab.attach(self.run.id)
            self.counts["deleted"] += 1
            self.begin()
        elif trainers(path) and self.chance.random() < 0.3:
            self.run.stop()
            until(lambda: not trainers(path) and self.run.state in ENDED)
            self.counts["reached"] += 1
        assert self.run.state != "unreadable"

    def go_to_the_end(self):
        while self.run.state != "finished":
            self.resume().communicate()
            self.run.wait(timeout_s=600)
        self.counts["finished"] += 1


def weights(run):
    (path,) = run.path.glob("members/*/*/student.safetensors")
    return load_file(path)


@pytest.mark.nightly
@pytest.mark.slow
def test_resumes_stops_and_kills_in_any_order(kdlab_home, elsewhere):
    """Never two that train, the one always within reach, and the result of a quiet run."""
    words = ["smoke/none", "train.epochs=150", "tracking.enabled=false",
             "train.checkpoint_every_steps=100", "train.evaluate_every=50"]  # fmt: skip
    quiet = kdlab.load(*words).start(lambda line: None).wait(timeout_s=600)
    storm = AnyOrder(words, seed=7)
    for fault in range(int(os.environ.get("FAULTS", "10"))):
        storm.some()
        storm.look()
        if storm.run.state == "finished" or fault % 50 == 49:
            same_as(storm, quiet)
    same_as(storm, quiet)
    sys.stdout.write(f"{dict(storm.counts)}\n")  # for whoever asks with -s


def same_as(storm, quiet):
    """Continue the run to its end, which is that of a run that nobody has disturbed."""
    storm.go_to_the_end()
    for key in ("student_top1", "samples_seen", "samples_lost", "samples_repeated"):
        assert storm.run.result[key] == quiet.result[key]
    was, now = weights(quiet), weights(storm.run)
    assert all((was[name] == now[name]).all() for name in was)
    storm.begin()


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
    with pytest.raises(
        WeightsError, match=r"student\.json, the card of an exported student"
    ):
        read_card(tmp_path / "student.safetensors")


@pytest.mark.parametrize("text", [None, "", "[]", DEEP, '{"num_classes": 1e9}'])
def test_a_damaged_card_is_a_sentence(tmp_path, text):
    if text is not None:
        (tmp_path / "student.json").write_text(text)
    with pytest.raises(WeightsError, match="Export the student again"):
        read_card(tmp_path / "student.safetensors")


# Well formed, and odd: how many of each is told by the environment (`ODD=1000`)

MANY = int(os.environ.get("ODD", "30"))

LISTENS = """
import signal, sys
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda number, frame: print(number, flush=True))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def somebody():
    """A process that has nothing to do with kdlab: its number, and what it has been sent."""
    words = [sys.executable, "-c", LISTENS]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"

        def sent():
            assert process.poll() is None, "it was killed"
            process.stdin.close()
            return process.stdout.read().split()

        yield process.pid, sent


class Odd:
    """Values of any type, right and wrong ones, as somebody may have written them."""

    def __init__(self, seed, pid):
        self.chance, self.pid = random.Random(seed), pid

    def value(self, depth=0):
        plain = (
            *(None, True, 0, -1, 1, 0.5, 1e300, 2**63, self.pid, "", "0", "x" * 300),
            *("starting", "running", "finished", "\x1b[31m", "../../up", "é", time.time()),
        )
        kind = self.chance.randrange(8 if depth < 3 else 6)
        if kind < 6:
            return self.chance.choice(plain)
        some = [self.value(depth + 1) for _ in range(self.chance.randrange(3))]
        return some if kind == 6 else {str(value)[:20]: value for value in some}

    def changed(self, known):
        """Return the mapping with some values replaced, removed or added."""
        mapping = dict(known)
        for _ in range(self.chance.randrange(4)):
            key = self.chance.choice([*known, "pid", "process_started", "new"])
            if self.chance.random() < 0.2:
                mapping.pop(key, None)
            elif isinstance(mapping.get(key), dict) and self.chance.random() < 0.7:
                mapping[key] = self.changed(mapping[key])
            else:
                mapping[key] = self.value()
        return mapping


def odd_folder(odd, template, path):
    """A copy of a run's folder whose files are all well formed."""
    chance = odd.chance
    shutil.copytree(template, path)
    status = json.loads((template / "status.json").read_text())
    states = ["starting", "running", "stopped", "finished", "pool"]
    status |= {"state": chance.choice(states), "pid": odd.pid}
    status["process_started"] = psutil.Process(odd.pid).create_time()
    body = odd.changed({k: v for k, v in status.items() if k != "seal"})
    body = json.loads(json.dumps(body))
    (path / "status.json").write_text(json.dumps(body | {"seal": hash_of(body)}))
    for name in chance.sample(["experiment.json", "components.json", "knobs.json"], 2):
        known = json.loads((path / name).read_text()) if (path / name).is_file() else {}
        (path / name).write_text(json.dumps(odd.changed(known)))
    (path / "process.json").write_text(json.dumps({"pid": odd.pid}))
    if chance.random() < 0.5:
        spec = yaml.safe_load((path / "spec.yaml").read_text())
        (path / "spec.yaml").write_text(yaml.safe_dump(odd.changed(spec)))
    with (path / "events.jsonl").open("w") as file:
        for kind in chance.choices(
            ["run_started", "member_started", "step_logged", "run_done"], k=4
        ):
            line = {"event": kind, "time": 1.0, "member": "none/seed0", "state": "finished"}
            file.write(json.dumps(odd.changed(line)) + "\n")
    lock = path / "lock"
    kind = chance.randrange(6)
    if kind == 0:
        lock.symlink_to(path / "spec.yaml")
    elif kind == 1:
        os.mkfifo(lock)
    elif kind == 2:
        lock.mkdir()
    elif kind < 5:
        lock.write_text(
            str(chance.choice([odd.pid, os.getpid(), 1, -1, 0, 2**40, "x", ""]))
        )
    for missing in chance.sample(sorted(path.iterdir()), chance.randrange(2)):
        if missing.is_file():
            missing.unlink()


def moved(odd, path):
    """Rename the folder, copy it, put a link in its place, or leave it as it is."""
    kind = odd.chance.randrange(4)
    if kind == 1:
        path = path.rename(path.with_name(f"renamed {path.name}"))
    elif kind == 2:
        shutil.copytree(path, path.with_name(f"{path.name}-copy"), symlinks=True,
                        ignore=shutil.ignore_patterns("lock"))  # fmt: skip
    elif kind == 3:
        path.rename(path.parent.parent / path.name)
        path.symlink_to(path.parent.parent / path.name)
    return path


COMMANDS = (
    *(["stop", "RUN"], ["stop", "RUN", "--now"], ["resume", "RUN", "--detach"], ["runs"]),
    *(
        ["runs", "--json"],
        ["control", "RUN", "pause"],
        ["control", "RUN", "set", "lr_factor=2"],
    ),
    *(
        ["resume", "RUN", "--detach", "--anew"],
        ["scale", "RUN", "2"],
        ["predict", "RUN", "."],
    ),
    *(["mark", "RUN", "--tag", "a", "--archive"], ["delete", "RUN", "--yes"]),
)


@pytest.mark.processes
def test_odd_folders_are_words_and_signals_to_nobody(
    kdlab_cli, elsewhere, monkeypatch, somebody
):
    """Folders that are copied, moved or locked, and whose files name a process of others."""
    pid, sent = somebody
    for module in ("experiment.folder", "run.handle.job_handle"):
        monkeypatch.setattr(f"kdlab.{module}.PATIENCE_S", 0.2)
    monkeypatch.setattr("kdlab.run.handle.run.spawn", lambda *_: None)
    template = create_folder(kdlab.load("smoke/none"), "stopped")[0].path
    template = template.rename(elsewhere / "template")
    odd, slowest = Odd(11, pid), (0.0, [])
    for number in range(MANY):
        path = elsewhere / "runs" / f"odd-{number:04}"
        odd_folder(odd, template, path)
        path = moved(odd, path)
        held = contextlib.ExitStack()
        if odd.chance.random() < 0.3:  # by this process, in the name of another one
            with contextlib.suppress(KdlabError):
                lock = held.enter_context(RunFolder(path).held())
                os.pwrite(lock, str(odd.chance.choice([pid, "", 1])).encode(), 0)
        with held:
            looked_at(RunFolder(path))
            for command in odd.chance.sample(COMMANDS, 3):
                begin = time.process_time()
                words = [path.name if word == "RUN" else word for word in command]
                code, _, err = kdlab_cli(*words)
                slowest = max(slowest, (time.process_time() - begin, words))
                assert code in (0, 1, 2), err
                assert "Traceback" not in err
        shutil.rmtree(elsewhere / "runs")
    assert sent() == []
    sys.stdout.write(f"{MANY} odd folders; the slowest took {slowest} CPU seconds\n")


def test_odd_orders_are_orders_or_nothing(tmp_path):
    odd, path = Odd(12, 1), tmp_path / "control.jsonl"
    known = {"time": 1.0, "member": "m", "set": {"lr_factor": 0.5}, "name": "teacher-0"}
    with path.open("w") as file:
        for _ in range(MANY):
            line = odd.changed(known | {"event": odd.chance.choice([*Change.KINDS])})
            file.write(json.dumps(line) + "\n")
    for change in ChangeReader(path)():
        assert type(change) in Change.KINDS.values()
        assert isinstance(change.member, str)
    queue = ChangeQueue(path, "m")
    queue.poll(now=True)
    assert all(isinstance(value, float | int) for value in queue.values.values())


def test_odd_cards_are_cards_or_a_sentence(elsewhere):
    """Cards of exported students, and of the registry."""
    odd = Odd(13, 1)
    cards = elsewhere / "registry" / "data"
    cards.mkdir(parents=True)
    known = compose_card("data/digits_tiny").data
    for _ in range(MANY):
        (elsewhere / "student.json").write_text(json.dumps(odd.changed(CARD)))
        with contextlib.suppress(WeightsError):
            read_card(elsewhere / "student.safetensors")
        (cards / "odd.yaml").write_text(yaml.safe_dump(odd.changed(known)))
        for read in (
            lambda: construct(DataSpec, compose_card("data/odd")),
            lambda: described("data/odd"),
        ):
            with contextlib.suppress(KdlabError):
                read()
