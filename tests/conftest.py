"""Every test has a kdlab home shared by the session and run folders of its own."""

import _posixsubprocess
import gc
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

import fork_server
import numpy as np
import pytest
import torch
from hypothesis import settings
from tests_support import TIER, free_port, listens, until

pytest_plugins = ["cpu_seconds", "finished_runs"]
torch.set_num_threads(1)

# On a developer's machine every run tries new examples; CI tries the same ones each time,
# so that a landing does not fail for what it did not change. `tests_support.examples` has the
# numbers of those that say how many; the others have these.
for tier, count in {"quick": 10, "ci": 100, "dev": 100, "nightly": 300}.items():
    same = bool(os.environ.get("CI"))
    settings.register_profile(tier, deadline=None, max_examples=count, derandomize=same)
settings.load_profile(TIER)


def pytest_addoption(parser):
    parser.addoption(
        "--no-processes",
        action="store_true",
        help="a test that starts a process fails: it lacks the mark `processes`",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish():
    """Exempt imports from garbage collection, which takes a third of a second for them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup():
    """Seed random numbers: a test without a seed of its own draws the same each time."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def no_processes(request):
    """With `--no-processes`, fail a test that starts a process (`make quick`)."""
    if not request.config.getoption("--no-processes"):
        yield
        return

    def refused(*_arguments, **_options):
        pytest.fail("starts a process; mark it with pytest.mark.processes")

    really = subprocess._fork_exec

    def refused_but_for_questions(words, *rest):
        # What a report says of its machine: answered at once, and neither is kdlab's.
        return (really if words[0] in ("git", "uname") else refused)(words, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "_fork_exec", refused_but_for_questions)
        patch.setattr(_posixsubprocess, "fork_exec", refused)
        patch.setattr(os, "fork", refused)
        yield


@pytest.fixture(autouse=True)
def signals_come_through():
    """Restore blocked signals: a child that is started with them blocked cannot be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture(scope="session", autouse=True)
def forking(request):
    """Fork children with torch imported: its import was most of the time of tests."""
    if request.config.getoption("--no-processes"):
        yield
        return
    with fork_server.preloaded(
        "torch.distributed", "distributed", "safetensors.torch", "timm"
    ):
        yield


@pytest.fixture
def spawned(monkeypatch):
    """Processes are started as users start them: each a Python that imports for itself."""
    monkeypatch.setattr(fork_server, "_server", None)


@pytest.fixture(scope="session", autouse=True)
def kdlab_home(tmp_path_factory):
    """Decoded data and prepared teachers are made once per session."""
    home = tmp_path_factory.mktemp("kdlab-home")
    os.environ["KDLAB_HOME"] = str(home)
    os.environ.pop("KDLAB_RUNS", None)
    # Nobody is told of the runs of tests.
    os.environ.pop("KDLAB_WEBHOOK", None)
    os.environ["KDLAB_SECRETS"] = str(home / "secrets")
    return home


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A current folder with nothing in it: configs and cards come from kdlab's own.

    A run that a failed test has left there is ended.
    """
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    left = [p for p in (tmp_path / "runs").glob("*") if (p / "status.json").is_file()]
    if left:
        from kdlab.errors import BadInput
        from kdlab.experiment.folder import RunFolder
        from kdlab.run.handle.run import Run

        for run in map(RunFolder, left):
            process = run.process()
            if process is not None and process.pid != os.getpid():  # not written by hand
                with suppress(BadInput):
                    Run(run).kill()


@pytest.fixture
def with_token(tmp_path):
    """Both ends of a label wire in this process know the token of a local pool."""
    from kdlab.cluster.transport import security

    path = tmp_path / "token"
    path.write_text("secret")
    files = security.Tls(temporary=True).files(tmp_path) | {"token": str(path)}
    with security.tls_settings(files):
        yield path


@pytest.fixture
def filled_here(monkeypatch):
    """A folder that was written by hand is filled by this process, which may be signalled."""
    monkeypatch.setattr("kdlab.run.handle.job_handle._fills", lambda process, folder: True)


@pytest.fixture
def in_this_process(elsewhere, monkeypatch):
    """Runs are done in this process; `in_this_process.stop` is asked whether one is to end."""
    from runs_here import RunsHere

    runs = RunsHere(monkeypatch)
    monkeypatch.setattr("kdlab.run.handle.run.spawn", runs)
    return runs


@pytest.fixture(scope="session")
def digits():
    """(data, spec) of the small digits set."""
    from kdlab.config.check import construct
    from kdlab.config.load import compose_card
    from kdlab.data.images import DataSpec

    spec = construct(DataSpec, compose_card("data/digits_tiny"))
    return spec.load(), spec


@pytest.fixture
def samples(digits):
    """Three epochs of batches of 50."""
    from kdlab.data.samples import planned

    data, spec = digits
    return planned(data, spec.to_dict(), batch=50, seed=3, epochs=3)


def _dask(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def two_workers(tmp_path):
    """A real Dask cluster: (address, two worker processes)."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    processes = [
        _dask("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    ]
    try:
        until(lambda: listens(port))
        for number in (1, 2):
            folder = tmp_path / f"worker{number}"
            processes.append(
                _dask(
                    "worker", address, "--no-nanny", "--no-dashboard", "--nthreads", "1",
                    "--host", "127.0.0.1", "--local-directory", str(folder),
                )
            )  # fmt: skip
        from distributed import Client

        with Client(address, timeout="60s") as client:
            client.wait_for_workers(2, timeout=300)
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def kdlab_cli(elsewhere, capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    from kdlab.cli import main

    def call(*words):
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call
