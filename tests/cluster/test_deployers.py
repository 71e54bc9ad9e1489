"""Job scripts and manifests of Kubernetes: generated, read back, and validated."""

import importlib.resources
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jsonschema
import kubernetes_validate
import pytest
import yaml

from kdlab.cluster.deployed_pool import DeployedPool
from kdlab.cluster.deployers.job_queue import JobQueueMachines
from kdlab.cluster.deployers.kubernetes import KubernetesMachines, KubernetesPods
from kdlab.cluster.deployers.local import LocalMachines
from kdlab.cluster.deployers.ssh import SshMachines
from kdlab.cluster.pool import LocalTeacherCount
from kdlab.cluster.schedulers import start_scheduler
from kdlab.cluster.transport.security import Tls
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import BadInput, ClusterError, SpecError

RESOURCE = {
    "slurm": "--gres=gpu:1",
    "pbs": "-l ngpus=1",
    "sge": "-l gpu=1",
    "lsf": "-R rusage[ngpus_excl_p=1]",
}
FLAGS = {"slurm": "#SBATCH", "pbs": "#PBS", "sge": "#$", "lsf": "#BSUB"}


@pytest.mark.processes
@pytest.mark.parametrize("system", FLAGS)
def test_a_job_script_asks_for_what_was_said_and_starts_a_host(
    system, deployment, tmp_path
):
    machines = JobQueueMachines(
        system=system,
        cores=4,
        memory="16GB",
        queue="spot",
        account="vision",
        walltime="02:00" if system == "lsf" else "02:00:00",
        directives=(RESOURCE[system],),
    )
    files = Tls(temporary=True).files(tmp_path)
    scheduler, address = start_scheduler(deployment, tmp_path, ttl_s=6.0, tls=files)
    try:
        with machines.cluster(address, files, tmp_path) as cluster:
            script = cluster.job_script()
    finally:
        scheduler.stop()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    lines = script.splitlines()
    header = " ".join(line for line in lines if line.startswith(FLAGS[system]))
    for word in ("spot", "vision", "02:00", RESOURCE[system], str(tmp_path)):
        assert word in header
    (command,) = [line for line in lines if "distributed.cli.dask_worker" in line]
    for word in (address, "--resources kdlab_teacher=1", "--no-dashboard",
                 "--worker-class kdlab.cluster.transport.roles.TeacherWorker",
                 f"--tls-ca-file {files['ca']}", f"--tls-key {files['key']}"):  # fmt: skip
        assert word in command
    assert "PRIVATE KEY" not in script


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", "spot\nrm -rf ~"),
        ("account", "a; curl evil"),
        ("memory", "$(id)"),
        ("walltime", "`id`"),
        ("queue", "normal -E /scratch/x.sh"),
        ("account", "-E"),
        ("directives", ("--wrap='id'",)),
        ("directives", ("-o /home/u/.bashrc",)),
        ("directives", ("--export=ALL,LD_PRELOAD=/scratch/x.so",)),
        ("directives", ("--prolog=/scratch/x",)),
        ("directives", ("x\n#SBATCH -p y\nid",)),
    ],
)
def test_a_config_writes_no_shell_into_a_job(field, value):
    with pytest.raises(SpecError, match=f"{field}: (is|has) "):
        JobQueueMachines(**{field: value})


@pytest.mark.parametrize("system", RESOURCE)
def test_what_asks_for_resources_is_taken(system):
    assert JobQueueMachines(system=system, directives=(RESOURCE[system],)).system == system


def test_a_path_that_a_job_script_cannot_hold_is_refused(tmp_path):
    files = {"ca": "/tmp/a; id", "cert": "/tmp/c", "key": "/tmp/k"}
    with pytest.raises(BadInput, match="cannot hold"):
        JobQueueMachines().cluster("tls://127.0.0.1:1", files, tmp_path)


def test_a_config_runs_no_program_of_its_own_by_ssh():
    with pytest.raises(SpecError, match="must be the path"):
        SshMachines(hosts=("a",), python="python; id")
    with pytest.raises(SpecError, match="must be the path of a python"):
        SshMachines(hosts=("a",), python="/scratch/run-me")
    for hosts, why in (((), "is empty"), (("a", "a"), "twice"), (("a';id;'",), "no name")):
        with pytest.raises(SpecError, match=f"hosts: .*{why}"):
            SshMachines(hosts=hosts)
    assert SshMachines(hosts=("a",), python="/opt/kd-lab/bin/python3.11").at_most() == 1


def test_a_batch_system_that_is_not_here_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match="sbatch, which is not on this machine"):
        DeployedPool(machines=JobQueueMachines()).check()


def test_a_pool_asks_for_no_more_hosts_than_there_are():
    two = SshMachines(hosts=("a", "b"))
    with pytest.raises(SpecError, match="most: is 3, and there are 2 machines"):
        DeployedPool(machines=two, most=3)
    with pytest.raises(SpecError, match="least: is 3"):
        DeployedPool(machines=LocalMachines(), least=3, most=2)
    with pytest.raises(SpecError, match="tls: is missing"):
        DeployedPool(machines=KubernetesMachines())


def test_teachers_of_machines_here_compete_with_the_student_and_others_do_not():
    local = DeployedPool(
        machines=LocalMachines(), teachers=2, most=3, threads=4
    ).local_teachers()
    assert local == LocalTeacherCount(first=2, most=6, threads=4)
    remote = DeployedPool(machines=SshMachines(hosts=("a",)), most=1)
    assert remote.local_teachers() == LocalTeacherCount()


def test_a_pool_is_written_as_any_other_component():
    text = {
        "type": "cluster/deployed_pool",
        "most": 8,
        "machines": {"type": "cluster/deployers/job_queue", "system": "pbs", "cores": 2},
    }
    pool = construct(DeployedPool, from_dict(text, "teacher_pool"))
    assert isinstance(pool.machines, JobQueueMachines)
    assert (pool.least, pool.most, pool.machines.cores) == (0, 8, 2)


MACHINES = KubernetesMachines(
    name="teachers", namespace="vision", image="registry/kdlab:1", gpus=1, data="photos"
)


@pytest.mark.long
def test_dasks_operator_takes_the_manifest():
    files = importlib.resources.files("dask_kubernetes.operator")
    path = files / "deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
    crd = yaml.safe_load(path.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    manifest = json.loads(json.dumps(MACHINES.manifest("teachers")))
    jsonschema.validate(manifest, schema)
    del manifest["spec"]["scheduler"]["service"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, schema)


@pytest.mark.parametrize("part", ["worker", "scheduler"])
def test_kubernetes_takes_the_pods(part):
    """Dask's operator wraps each pod in such a deployment."""
    labels = {"dask.org/cluster-name": "teachers"}
    pod = MACHINES.manifest("teachers")["spec"][part]["spec"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    kubernetes_validate.validate(json.loads(json.dumps(deployment)), "1.34", strict=True)
    assert pod["containers"][0]["image"] == "registry/kdlab:1"
    mounted = {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert mounted == {"/tls", "/data"}


class Api(BaseHTTPRequestHandler):
    """The few operations of Kubernetes' API that are used, on objects in memory."""

    def do_POST(self):
        cluster = self.read_body()
        assert self.path.endswith("/namespaces/vision/daskclusters")
        self.server.objects["daskclusters/teachers"] = cluster
        group = {
            **cluster,
            "kind": "DaskWorkerGroup",
            "metadata": {"name": "teachers-default", "namespace": "vision"},
            "spec": {"cluster": "teachers", "worker": cluster["spec"]["worker"]},
        }
        self.server.objects["daskworkergroups/teachers-default"] = group  # as the operator
        self.answer(201, cluster)

    def do_GET(self):
        if self.path.startswith("/version"):
            return self.answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        stored = self.server.objects.get(self.key())
        if "fieldSelector" in self.path or (stored is None and self.path.count("/") < 7):
            kind = self.path.partition("?")[0].rpartition("/")[2]
            items = [o for k, o in self.server.objects.items() if k.startswith(kind)]
            return self.answer(200, {"kind": "List", "apiVersion": "v1", "items": items})
        return self.answer(200 if stored else 404, stored or {"message": "not found"})

    def do_PATCH(self):
        group = self.server.objects[self.key()]
        group["spec"]["worker"] |= self.read_body()["spec"]["worker"]
        self.server.replicas.append(group["spec"]["worker"]["replicas"])
        self.answer(200, group)

    def do_DELETE(self):
        self.answer(200, self.server.objects.pop(self.key()))

    def key(self):
        return "/".join(self.path.partition("?")[0].split("/")[-2:])

    def read_body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, code, what):
        body = json.dumps(what).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def kubernetes(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.objects, server.replicas = {}, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {
                "name": "here",
                "context": {"cluster": "c", "user": "u", "namespace": "vision"},
            }
        ],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_pods_follow_the_demand_through_kubernetes_api(kubernetes):
    pods = KubernetesPods(MACHINES, "teachers")
    assert kubernetes.objects["daskclusters/teachers"] == MACHINES.manifest("teachers")
    assert pods.address == "tls://teachers-scheduler.vision.svc.cluster.local:8786"
    pods.grow(3)
    pods.withdraw(["a", "b"])
    assert kubernetes.replicas == [3, 1]
    assert pods.wanted() == 1
    # The run was killed, and goes on: its cluster is there, and has none to begin with.
    again = KubernetesPods(MACHINES, "teachers")
    assert kubernetes.replicas == [3, 1, 0]
    again.close()
    assert "daskclusters/teachers" not in kubernetes.objects


@pytest.mark.long
def test_what_kubernetes_refuses_is_said_with_what_to_look_at(kubernetes):
    pods = KubernetesPods(MACHINES, "teachers")
    del kubernetes.objects["daskworkergroups/teachers-default"]  # no operator there
    with pytest.raises(ClusterError, match="Is Dask's operator installed"):
        pods.grow(1)
    assert pods.wanted() == 0
    pods.close()
