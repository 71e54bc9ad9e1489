"""Whole runs as the README starts them, and the commands around them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid

import psutil
import pytest
from runs_here import RunsHere
from tests_support import free_port, listens, until

import kdlab
from kdlab.run.ui import token
from kdlab.tracking.store import make_sure_of


@pytest.fixture
def inline_runs(elsewhere, monkeypatch):
    """Runs go on in this process: the test looks only at what they leave."""
    monkeypatch.setattr("kdlab.run.handle.run.spawn", RunsHere(monkeypatch))


def start(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "kdlab", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
    )  # fmt: skip


def end(process, number=signal.SIGINT):
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


@pytest.mark.slow("README's run: three trainings and MLflow, each process its own Python")
def test_quickstart(run_json, elsewhere, spawned, monkeypatch):
    """The README's run has the results that README says, and leaves no process behind."""
    # Other tests may run processes too: the run's own inherit this mark.
    monkeypatch.setenv("KDLAB_TEST_MARK", uuid.uuid4().hex)
    seen = set()
    with watching(lambda: seen.update(marked(os.environ["KDLAB_TEST_MARK"]))):
        result = run_json("quickstart")
    assert len(seen) >= 2  # the run's process, and its teachers'
    _, left = psutil.wait_procs(seen, timeout=120)  # the run itself is just ending
    assert [p.pid for p in left] == []
    assert [r["source"] for r in result["runs"]] == ["none", "in_process", "served"]
    assert result["source"] == "served"
    assert result["teacher_top1"] >= 97
    for row in result["runs"]:
        assert (row["samples_seen"], row["samples_lost"], row["samples_repeated"]) == (
            11980,
            0,
            0,
        )
        assert row["student_top1"] > 80
    from mlflow import MlflowClient

    client = MlflowClient(result["tracking_uri"])
    experiment = client.get_experiment_by_name("quickstart")
    logged = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    taught = "cifar_resnet-8 taught by cifar_resnet-14"
    assert set(logged) == {
        f"quickstart · {result['run_id'][-4:]}",
        "plain cifar_resnet-8",
        f"in_process · {taught}",
        f"served · {taught}",
    }
    assert {r.info.status for r in logged.values()} == {"FINISHED"}
    top1 = logged[f"served · {taught}"].data.metrics["test/top1"]
    assert top1 == pytest.approx(result["student_top1"])


def marked(mark):
    """Processes whose environment holds the mark, but not this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            inherits = process.environ().get("KDLAB_TEST_MARK") == mark
            if inherits and process.pid != os.getpid():
                yield process


@contextlib.contextmanager
def watching(look):
    """Call `look` again and again in a thread while the block runs."""
    over = threading.Event()

    def loop():
        while not over.wait(0.5):
            look()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        look()


@pytest.mark.slow("a scheduler of Dask, two teachers and two runs")
def test_remote_teachers_join_a_plain_dask_scheduler(elsewhere, run_json):
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    dask = subprocess.Popen(
        [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", str(port),
         "--no-dashboard"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    teachers = []
    try:
        until(lambda: listens(port))
        # One joins before the run says what to serve, one with a model of its own.
        teachers.append(
            start("teacher", address, "--insecure", "--name", "early", "--threads", "1")
        )
        pool = f"teacher_pool={{type: cluster/remote_pool, address: '{address}', insecure: true}}"
        teachers.append(
            start(
                "teacher",
                address,
                "--insecure",
                "--model",
                "teachers/digits_tiny",
                "--threads",
                "1",
            )
        )
        result = run_json("smoke/served", pool, "train.epochs=4")
        assert (result["samples_seen"], result["samples_lost"]) == (960, 0)
        again = run_json("smoke/served", pool, "seeds=[5]")  # the pool outlives the run
        assert again["samples_lost"] == again["samples_repeated"] == 0
        output = end(teachers[0])
        assert "withdraws" in output
        assert teachers[0].returncode == 0
    finally:
        for process in (*teachers, dask):
            end(process)


@pytest.mark.nightly
def test_a_cost_that_cannot_be_measured_does_not_lose_the_training(elsewhere):
    """A student that takes no single image."""
    (elsewhere / "nb.py").write_text(
        '''
from dataclasses import dataclass
import kdlab
from torch import nn
from kdlab.models.model import ModelSpec

@kdlab.register("models/picky")
@dataclass(frozen=True, kw_only=True)
class Picky(ModelSpec):
    """Takes no single image."""

    def architecture(self, num_classes, in_chans):
        class Together(nn.Linear):
            def forward(self, views):
                if len(views) == 1:
                    raise RuntimeError("one is not enough")
                return super().forward(views.flatten(1))
        return Together(64 * in_chans, num_classes)

run = kdlab.load("smoke/none", {"student": {"type": "models/picky"},
                 "tracking.enabled": False}).start().wait()
said = [e.message for e in run.events() if e.KIND == "warned"]
print(run.state, run.result["costs"], said[-1])
print(run.table())
'''
    )
    done = subprocess.run(
        [sys.executable, "nb.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    last = "The costs of the student are unknown: one is not enough"
    assert done.stdout.startswith(f"finished {{}} {last}")


@pytest.mark.slow("a script, its run and pool: each a Python that imports torch for itself")
def test_a_model_from_a_notebook_cell_serves_in_teacher_processes(elsewhere):
    """The cell's text travels: run process, pool, teachers; all build the same model."""
    (elsewhere / "nb.py").write_text(
        '''
from dataclasses import dataclass
import kdlab
from torch import nn
from kdlab.models.model import ModelSpec

@kdlab.register("models/one_layer")
@dataclass(frozen=True, kw_only=True)
class OneLayer(ModelSpec):
    """A linear classifier."""
    bias: bool = True

    def architecture(self, num_classes, in_chans):
        return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_chans, num_classes, bias=self.bias))

run = kdlab.load("smoke/served", {"teacher.model": {"type": "models/one_layer", "bias": False},
                 "tracking.enabled": False}).start().wait()
print(run.result["samples_seen"], run.result["samples_lost"])
'''
    )
    done = subprocess.run(
        [sys.executable, "nb.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["480", "0"]


@pytest.mark.nightly
def test_a_teacher_of_another_model_is_refused(elsewhere):
    """The pool serves digits_tiny; this teacher brings another model."""
    (elsewhere / "registry").mkdir()
    (elsewhere / "registry" / "other.yaml").write_text(
        "use: teachers/digits_tiny\nseed: 99\n"
    )
    run = kdlab.load(
        "smoke/served", {"train.epochs": 4000, "tracking.enabled": False}
    ).start()
    try:
        ready = next(e for e in run.events(follow=True) if e.KIND == "pool_ready")
        teacher = start("teacher", ready.address, "--model", "other", "--threads", "1")
        output, _ = teacher.communicate(timeout=600)
        assert teacher.returncode == 1
        assert "the pool serves" in output
    finally:
        run.kill()


@pytest.mark.processes
def test_tracking_that_fails_does_not_stop_training(run_json, kdlab_cli, elsewhere):
    """The store cannot be made; the run finishes, and --sync writes once it can."""
    store = elsewhere / "store"
    store.write_text("a file where a folder is needed")
    uri = f"tracking.uri=sqlite:///{store}/mlflow.db"
    result = run_json("smoke/none", uri, "tracking.enabled=true")
    assert result["status"] == "finished"
    code, out, _ = kdlab_cli("runs", "--sync")
    assert code == 0
    assert "not written" in out
    store.unlink()
    store.mkdir()
    code, out, _ = kdlab_cli("runs", "--sync")
    assert f"{result['run_id']}: " in out
    assert "events written" in out
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("smoke").experiment_id])
    assert run.data.metrics["test/top1"] == pytest.approx(result["student_top1"])
    assert kdlab_cli("runs", "--sync")[1].strip() == "MLflow has everything."


@pytest.mark.nightly
def test_a_killed_run_is_told_to_mlflow_later(elsewhere, kdlab_cli):
    run = kdlab.load("smoke/none", {"train.epochs": 4000, "tracking.enabled": True}).start()
    next(e for e in run.events(follow=True) if e.KIND == "epoch_done")
    os.kill(run.folder.process().pid, signal.SIGKILL)
    run.wait(timeout_s=600)
    kdlab_cli("runs", "--sync")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{elsewhere}/runs/mlflow.db")
    (logged,) = client.search_runs([client.get_experiment_by_name("smoke").experiment_id])
    assert logged.info.status == "FAILED"


@pytest.mark.slow("MLflow makes a store, and serves it")
def test_the_ui_answers_on_loopback_and_goes_with_its_processes(elsewhere):
    (elsewhere / "runs").mkdir()
    make_sure_of(elsewhere / "runs" / "mlflow.db")
    port = free_port()
    ui = start("ui", "--port", str(port))
    try:
        address = next(line for line in ui.stdout if line.startswith("MLflow: "))
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/health",
            headers={"Authorization": f"Bearer {token()}"},
        )
        with urllib.request.urlopen(asked, timeout=60) as page:
            assert page.read() == b"OK"
        family = psutil.Process(ui.pid).children(recursive=True)
    finally:
        end(ui)
    assert f".localhost:{port}/?token=" in address  # of a browser, and once
    assert token() not in address
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []


@pytest.mark.processes("no process, but all that is installed is looked at")
def test_doctor_lists_and_compares(inline_runs, kdlab_cli, run_json):
    code, out, _ = kdlab_cli("doctor", "--json")
    assert code == 0
    assert {f["what"] for f in json.loads(out.strip().split("\n")[-1])} >= {"torch", "GPU"}
    first = run_json("smoke/none", "tracking.enabled=false")["run_id"]
    second = run_json("smoke/none", "train.lr=0.01", "tracking.enabled=false")["run_id"]
    code, out, _ = kdlab_cli("runs")
    assert first in out
    assert second in out
    code, out, _ = kdlab_cli("runs", "--compare", first, second)
    assert "train.lr" in out
    assert "train.epochs" not in out
    assert "top-1 %" in out


@pytest.mark.nightly
def test_bench_overhead_has_its_figures(kdlab_cli):
    code, out, _ = kdlab_cli("bench", "overhead", "--repeats", "1", "--json")
    assert code == 0
    figures = {f["name"]: f for f in json.loads(out.strip().split("\n")[-1])["figures"]}
    assert figures["n_training_over_bare_loop"]["goal"] == ">= 0.97"
    assert figures["import_s"]["value"] > 0


@pytest.mark.nightly
def test_bench_edl_dist_has_its_figures(kdlab_cli, monkeypatch):
    """One small case: the figures are there, and the buffer kept its bound."""
    from benchmarks import edl_dist

    monkeypatch.setattr(edl_dist, "CASES", (edl_dist.ImageCase(32, 16, 5, 30),))
    code, out, _ = kdlab_cli(
        "bench", "edl_dist", "--only", "served", "--repeats", "1", "--json"
    )
    assert code == 0
    figures = {f["name"]: f for f in json.loads(out.strip().split("\n")[-1])["figures"]}
    for way in ("reference", "value_uint8"):
        assert figures[f"served_over_memory/{way}/32/5ms"]["value"] > 0.1
        assert figures[f"served_over_n_training/{way}/32"]["goal"].startswith(">= 0.9")
    # A busy machine answers late, and what is in flight then is more than ut.
    assert 0 < figures["volume_over_ut_max"]["value"] < 50
    assert 0 < figures["student_cpu_ms_per_batch/reference"]["value"] < 5
    code, _, err = kdlab_cli("bench", "edl_dist", "--only", "served", "nothing")
    assert code == 2
    assert "has no part nothing; it has served, real_teacher, scale, faults" in err


@pytest.mark.nightly
def test_bench_pipe_bd_has_its_figures(kdlab_cli, monkeypatch):
    """One workload and few steps: every variant runs, and the planner is fast enough."""
    from benchmarks import pipe_bd

    monkeypatch.setattr(pipe_bd, "WORKLOADS", ("compression",))
    monkeypatch.setattr(pipe_bd, "BATCH", 8)
    monkeypatch.setattr(pipe_bd, "PROFILE_S", 2.0)
    code, out, _ = kdlab_cli(
        "bench",
        "pipe_bd",
        "--only",
        "compression",
        "memory",
        "planner",
        "--repeats",
        "1",
        "--json",
    )
    assert code == 0
    figures = {f["name"]: f for f in json.loads(out.strip().split("\n")[-1])["figures"]}
    for name in ("of_ideal", "over_dp", "over_ls", "over_dp_of_bound", "memory_over_dp"):
        assert figures[f"{name}/compression"]["value"] > 0.05
    assert figures["predicted_over_measured/compression"]["goal"] == "0.9 to 1.1"
    assert figures["over_tr_dpu/compression"]["goal"] == ">= 0.97"
    for part in ("load", "teacher", "student", "backward", "send", "receive", "update"):
        assert figures[f"part_ms/compression/tr_dpu/{part}"]["high"] > 0
    assert 0 < figures["plan_seconds/64x64"]["value"] < 60
    code, _, err = kdlab_cli("bench", "pipe_bd", "--only", "nothing")
    assert code == 2
    assert "it has compression, nas, stages, batches, memory, planner" in err
