"""Pools on machines that others start: real Dask clusters, a real SSH server, real processes."""

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import dask
import psutil
import pytest
from distributed import LocalCluster
from tests_support import free_port, listens, trained_ids, until

import kdlab
from kdlab.cluster.deployed_pool import DeployedPool
from kdlab.cluster.deployers.job_queue import JobQueueMachines
from kdlab.cluster.deployers.local import LocalMachines
from kdlab.cluster.deployers.ssh import SshMachines
from kdlab.cluster.remote_pool import RemotePool
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.transport.known_schedulers import trust

pytestmark = pytest.mark.slow("Dask's workers and their teachers, each a Python of its own")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def machines_of(pool):
    """Teachers by the machine that they are on."""
    machines = {}
    for teacher in status_of(pool.address, pool.tls).ready:
        machines.setdefault(teacher.facts.name.rsplit(".", 2)[0], []).append(teacher)
    return machines


def teachers_of(pool):
    return {teacher.address for teacher in status_of(pool.address, pool.tls).ready}


def complete(source, samples, epochs, pace_s=0.0):
    """Check that each epoch has every sample once; the student takes `pace_s` for a batch."""
    ids = []
    for epoch in range(epochs):
        for batch in source.epoch(epoch, ()):
            ids.append((epoch, batch.ids.copy()))
            time.sleep(pace_s)
    for epoch in range(epochs):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())


@pytest.fixture(autouse=True)
def no_titles(monkeypatch):
    """Dask's Nannies have all later children of this process call themselves Dask workers."""
    monkeypatch.setenv("__DASK_PARENT_PID", "")


@pytest.fixture
def started(deployment, tmp_path):
    """A pool that is ended whatever the test does."""
    pools = []

    def start(machines, **options):
        options = {"idle_s": 1.0} | options
        spec = DeployedPool(machines=machines, **options)
        spec.check()
        pools.append(spec.start(deployment, tmp_path / "pool"))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


def test_machines_come_when_a_student_searches_and_all_go_when_it_has_gone(started, served):
    pool = started(LocalMachines(), teachers=2, most=2)
    assert pool.wait().teachers == ()
    # More than any teacher here can do: it asks for all there may be.
    source, samples, _ = served(pool, epochs=3, rate=1e9)
    complete(source, samples, 3)
    until(lambda: len(machines_of(pool)) == 2)
    assert {len(teachers) for teachers in machines_of(pool).values()} <= {1, 2}
    assert pool.machines.wanted() == 2
    source.close()
    until(lambda: pool.machines.wanted() == 0)
    until(lambda: status_of(pool.address, pool.tls).teachers == ())
    until(lambda: not dask_workers())


def dask_workers():
    workers = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if child.name().startswith("dask"):
                workers.append(child)
    return workers


@pytest.mark.nightly
def test_none_is_added_while_the_student_is_the_slow_one(started, served):
    pool = started(LocalMachines(), most=4)
    source, samples, _ = served(
        pool, epochs=1, rate=100.0
    )  # samples/s; a teacher has 10,000
    complete(source, samples, 1, pace_s=0.2)
    assert pool.machines.wanted() == 1
    assert len(machines_of(pool)) == 1


@pytest.mark.nightly
def test_a_scheduler_that_dies_comes_back_with_machines(started, served):
    pool = started(LocalMachines(), most=1, ttl_s=2.0)
    source, samples, _ = served(pool, epochs=4)
    batches = source.epoch(0, ())
    ids = [(0, next(batches).ids.copy())]
    killed, before = pool.scheduler.pid, teachers_of(pool)
    os.kill(killed, signal.SIGKILL)
    until(lambda: pool.scheduler.pid != killed)
    until(lambda: teachers_of(pool) - before)
    ids += [(0, b.ids.copy()) for b in batches]
    ids += [(e, b.ids.copy()) for e in range(1, 4) for b in source.epoch(e, ())]
    for epoch in range(4):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())
    assert pool.machines.wanted() == 1


@pytest.mark.nightly
def test_any_cluster_of_dask_follows_the_demand(deployment, served, tmp_path):
    with (
        LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            resources={"kdlab_teacher": 1},
            dashboard_address=None,
            host="127.0.0.1",
            local_directory=str(tmp_path),
        ) as cluster,
        kdlab.follow_demand(cluster, most=2, idle_s=1.0) as follower,
    ):
        address = cluster.scheduler_address
        trust(address)
        pool = RemotePool(address=address, insecure=True).start(
            deployment, tmp_path / "pool"
        )
        try:
            assert follower.machines.wanted() == 0
            source, samples, _ = served(pool, epochs=3)
            complete(source, samples, 3)
            assert follower.machines.wanted() >= 1
            source.close()
            until(lambda: follower.machines.wanted() == 0)
            until(lambda: status_of(address, None).teachers == ())
        finally:
            pool.close()


@pytest.fixture
def ssh(tmp_path):
    """A server of SSH on loopback with keys of its own, for this user alone."""
    if not Path(SSHD).exists():
        pytest.skip("no sshd here: apt-get install openssh-server")
    for name in ("host", "mine"):
        words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
        subprocess.run(words, check=True)
    port = free_port()
    (tmp_path / "authorized").write_text((tmp_path / "mine.pub").read_text())
    kind, key, *_ = (tmp_path / "host.pub").read_text().split()
    (tmp_path / "known_hosts").write_text(
        "".join(f"[{host}]:{port} {kind} {key}\n" for host in ("127.0.0.1", "localhost"))
    )
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path / 'host'}\n"
        f"AuthorizedKeysFile {tmp_path / 'authorized'}\nStrictModes no\nUsePAM no\n"
        f"PidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    log = (tmp_path / "sshd.log").open("w")
    server = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=log
    )
    try:
        until(lambda: listens(port))
        yield {
            "port": port,
            "user": getpass.getuser(),
            "key": str(tmp_path / "mine"),
            "known_hosts": str(tmp_path / "known_hosts"),
        }
    finally:
        server.kill()
        server.wait()
        log.close()


def test_machines_by_ssh_and_one_of_them_that_is_not_there(started, served, ssh, caplog):
    """127.0.0.2 listens to nobody: the other host is asked, and the log says what was wrong."""
    hosts = ("127.0.0.2", "127.0.0.1")
    pool = started(SshMachines(hosts=hosts, **ssh), most=1)
    source, samples, _ = served(pool, epochs=3)
    complete(source, samples, 3)
    assert [name.rpartition("-")[0] for name in machines_of(pool)] == ["127.0.0.1"]
    assert "could not be started" in caplog.text
    source.close()
    until(lambda: pool.machines.wanted() == 0)
    until(lambda: status_of(pool.address, pool.tls).teachers == ())


@pytest.mark.nightly
def test_a_host_that_is_not_the_one_it_says_is_refused(started, ssh, tmp_path, caplog):
    known_hosts = Path(ssh["known_hosts"]).read_text().replace("AAAAC3", "AAAAC4")
    (tmp_path / "others").write_text(known_hosts)
    ssh["known_hosts"] = str(tmp_path / "others")
    started(SshMachines(hosts=("127.0.0.1",), **ssh), most=1, least=1)
    until(lambda: "could not be started" in caplog.text)


@pytest.mark.nightly
def test_a_machine_that_is_lost_is_replaced(started, served, ssh):
    """Its Nanny is killed, as when a machine goes: Dask forgets it, and another is asked for."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}):
        pool = started(SshMachines(hosts=("127.0.0.1",), **ssh), most=1, least=1)
        until(lambda: machines_of(pool))
        (first,) = machines_of(pool)
        (nanny,) = [p for p in psutil.process_iter() if is_nanny_of(p, pool.address)]
        nanny.kill()
        until(lambda: machines_of(pool) and first not in machines_of(pool))
        source, samples, _ = served(pool, epochs=1)
        complete(source, samples, 1)


def is_nanny_of(process, address):
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return "distributed.cli.dask_spec" in words and address in words
    return False


SBATCH = """#!/bin/sh
script=$(mktemp -p {jobs}/..) && cp "$1" $script
setsid bash $script > $script.log 2>&1 &
echo $! > {jobs}/$!
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
for job; do rm -f {jobs}/$job; pkill -TERM -s $job; done
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The two commands of SLURM that are used, on this machine: jobs are sessions of processes."""
    jobs, programs = tmp_path / "jobs", tmp_path / "programs"
    jobs.mkdir()
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (programs / name).write_text(text.format(jobs=jobs))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    yield jobs
    for job in jobs.iterdir():
        subprocess.run(["pkill", "-KILL", "-s", job.name], check=False)


def test_jobs_of_a_batch_system_come_and_go(slurm, started, served):
    pool = started(JobQueueMachines(memory="1GB"), most=1, host="127.0.0.1")
    assert list(slurm.iterdir()) == []
    source, samples, _ = served(pool, epochs=3)
    complete(source, samples, 3)
    (job,) = slurm.iterdir()
    assert [name.startswith("SLURM") for name in machines_of(pool)] == [True]
    source.close()
    until(lambda: list(slurm.iterdir()) == [])
    until(lambda: status_of(pool.address, pool.tls).teachers == ())
    left = ("pgrep", "-s", job.name)
    until(lambda: subprocess.run(left, check=False, capture_output=True).returncode == 1)


@pytest.mark.nightly
def test_a_queue_that_takes_no_jobs_is_said_and_a_pool_of_it_closes(slurm, started, caplog):
    program = slurm.parent / "programs" / "sbatch"
    program.write_text("#!/bin/sh\necho the queue is closed >&2\nexit 1\n")
    pool = started(JobQueueMachines(memory="1GB"), least=1, most=1, host="127.0.0.1")
    until(lambda: "the queue is closed" in caplog.text)
    folder = Path(pool.tls["ca"]).parent
    pool.close()
    assert not pool.scheduler.alive()
    assert not folder.exists()
