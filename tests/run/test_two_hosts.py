"""Ranks on two machines that reach each other over a network alone (network namespaces)."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from runs_here import RunsHere
from tests_support import until

import kdlab
from benchmarks.network import FAR, NEAR, MachineLink, linked, why_not
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder

pytestmark = [
    pytest.mark.slow("a scheduler, two workers and a run in Pythons of their own"),
    pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}"),
]
ADDRESS = f"tcp://{NEAR}:8786"  # a namespace has all ports to itself
COMMON = [
    "student={use: students/digits_tiny}",  # a residual network with batch norm
    "train.epochs=4",
    "train.evaluate_every=1000",
    "train.log_every_steps=1",
    "train.threads=1",
    "tracking.enabled=false",
]
RUN = """
import json, sys, kdlab
run = kdlab.load("smoke/none", *json.loads(sys.argv[1])).start(lambda line: None)
run.wait(timeout_s=900)
print(json.dumps([str(run.path), run.state, str(run.status)]))
"""


def trained(*overrides, within=()):
    """Train a run whose supervisor is on one of the hosts, and return its events."""
    done = subprocess.run(
        [*within, sys.executable, "-c", RUN, json.dumps([*COMMON, *overrides])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path, state, status = json.loads(done.stdout.splitlines()[-1])
    assert state == "finished", status
    return RunFolder(Path(path)).events


def losses(events):
    return {e.step: e.loss for e in select(events, "step_logged")}


@pytest.fixture(scope="module")
def one_process(kdlab_home, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("alone"))
        patch.setattr("kdlab.run.handle.run.spawn", RunsHere(patch))
        return losses(kdlab.load("smoke/none", *COMMON).start().folder.events)


@pytest.fixture
def hosts(tmp_path):
    """Start a scheduler on one host, workers on both; return words that enter the first."""
    with linked(MachineLink(1000.0)) as (near, far), ExitStack() as processes:

        def dask(within, role, *words):
            command = [*within, sys.executable, "-m", "dask", role, *words]
            log = processes.enter_context((tmp_path / f"{role}.log").open("ab"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            processes.callback(process.wait)
            processes.callback(process.kill)

        def start(each):
            dask(near, "scheduler", "--host", NEAR, "--port", "8786", "--no-dashboard")
            for host, within in ((NEAR, near), (FAR, far)):
                for number in range(each):
                    folder = tmp_path / f"{host}-{number}"
                    dask(
                        within, "worker", ADDRESS, "--no-nanny", "--no-dashboard",
                        "--nthreads", "1", "--host", host, "--local-directory", str(folder),
                    )  # fmt: skip
            until(lambda: count(near) == 2 * each)
            return near

        yield start


COUNT = """
import sys
from distributed import Client
try:
    with Client(sys.argv[1], timeout="5s") as client:
        print(len(client.scheduler_info(n_workers=-1)["workers"]))
except OSError:
    print(0)
"""


def count(within):
    done = subprocess.run(
        [*within, sys.executable, "-c", COUNT, ADDRESS],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_ranks_on_two_hosts_train_as_one_process_does(
    hosts, kdlab_home, elsewhere, one_process, ranks
):
    """Batch norm is over the rows of all ranks, also on two hosts (the defect B12)."""
    near = hosts(ranks // 2)
    events = trained(
        f"aggregation={{type: train/aggregation/all_reduce, ranks: {ranks}, standby: 0}}",
        f"workers={{address: '{ADDRESS}', insecure: true}}",
        within=near,
    )
    *_, generation = select(events, "generation_started")
    assert len(generation.ranks) == ranks
    on_two_hosts = losses(events)
    assert on_two_hosts.keys() == one_process.keys()
    assert max(abs(on_two_hosts[step] - one_process[step]) for step in one_process) < 5e-3
