"""Files in deploy/ fit Kubernetes, kdlab and the metrics that there are."""

import importlib.resources
import json
import re
import shlex
import tomllib
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import kubernetes_validate
import pytest
import yaml
from distributed.cli.dask_scheduler import main as dask_scheduler
from kr8s.asyncio import Api

from kdlab.cli import parser
from kdlab.cluster.coordination.coordinator_messages import (
    PoolStatus,
    StudentStatus,
    TeacherStatus,
)
from kdlab.cluster.coordination.metrics import PoolMetrics
from kdlab.cluster.deployers.kubernetes import KubernetesMachines, KubernetesPods
from kdlab.config.home import home_path
from kdlab.papers.edl_dist.teacher_info import TeacherInfo
from kdlab.run import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
DOCS = (ROOT / "docs" / "cluster.md").read_text()
VERSIONS = ("1.30", "1.34")
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
FILES = sorted(p for p in DEPLOY.glob("kubernetes/*.yaml") if p.stem != "kustomization")
OBJECTS = [
    pytest.param(m, id=f"{path.name}:{m['kind']}:{m['metadata']['name']}")
    for path in FILES
    for m in yaml.safe_load_all(path.read_text())
]
ALL = [param.values[0] for param in OBJECTS]


def of_kind(*kinds):
    return [manifest for manifest in ALL if manifest["kind"] in kinds]


TEMPLATES = {
    manifest["metadata"]["name"]: manifest["spec"]["template"]
    for manifest in of_kind("Deployment", "Job")
}
PODS = {name: template["spec"] for name, template in TEMPLATES.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", OBJECTS)
def test_kubernetes_takes_each_object(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelt_key_would_be_seen():
    wrong = json.loads(json.dumps(of_kind("Deployment")[0]))
    wrong["spec"]["replcas"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_all_but_a_run_is_applied_at_once():
    assert {*KUSTOMIZATION["resources"], "run.yaml"} == {path.name for path in FILES}


def containers():
    for spec in PODS.values():
        for container in spec["containers"]:
            yield spec, container


@pytest.fixture
def words_of(tmp_path):
    """The words of a container's command, with certificates that are there."""
    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").touch()
    return lambda container: [
        w.replace("/tls", str(tmp_path)) for w in container["command"]
    ]


def test_commands_are_those_that_kdlab_and_dask_take_and_their_files_are_mounted(words_of):
    for spec, container in containers():
        program, *words = words_of(container)
        if program == "kdlab":
            parser().parse_args(words)  # ends the process where it is wrong
        else:
            dask_scheduler.make_context(program, words[1:])
        mounted = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        assert set(mounted.values()) == {volume["name"] for volume in spec["volumes"]}
        named = re.findall(r"(/[\w/]+)/(\w+\.pem)", " ".join(container["command"]))
        assert {file for _, file in named} == {"ca.pem", "cert.pem", "key.pem"}
        assert {folder for folder, _ in named} <= set(mounted)


def test_the_run_is_against_this_pool(words_of):
    (container,) = PODS["kdlab-run"]["containers"]
    asked = parser().parse_args(words_of(container)[1:])
    pool = load(asked.experiment, *asked.overrides).spec.teacher_pool
    service = urlsplit(pool.address)
    (service_manifest,) = of_kind("Service")
    assert service.hostname == service_manifest["metadata"]["name"]
    assert service.port in [port["port"] for port in service_manifest["spec"]["ports"]]


# What somebody who has broken into a pod could do


def weaknesses(pod):
    """Settings of a pod that Kubernetes' profile "restricted" forbids, and more."""
    context = pod.get("securityContext", {})
    if pod.get("automountServiceAccountToken") is not False:
        yield "it has a token for Kubernetes' API"
    if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
        yield "it may be root"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "it may make any call of the kernel"
    if pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}:
        yield "it sees its machine"
    if any("hostPath" in volume for volume in pod["volumes"]):
        yield "it has folders of its machine"
    for container in pod["containers"]:
        its = container.get("securityContext", {})
        if its.get("allowPrivilegeEscalation") is not False or its.get("privileged"):
            yield "it may get more rights"
        if its.get("readOnlyRootFilesystem") is not True:
            yield "it may change its programs"
        if its.get("capabilities") != {"drop": ["ALL"]}:
            yield "it has capabilities"
        asked, most = (container["resources"].get(k, {}) for k in ("requests", "limits"))
        if not {"cpu", "memory", "ephemeral-storage"} <= asked.keys() & most.keys():
            yield "it takes what others need"


@pytest.mark.parametrize("name", PODS)
def test_a_pod_may_do_nothing_that_it_need_not(name):
    assert list(weaknesses(PODS[name])) == []


def test_each_weakness_would_be_seen():
    bare = {
        "volumes": [{"hostPath": {}}],
        "hostPID": True,
        "containers": [{"resources": {}}],
    }
    assert len(set(weaknesses(bare))) == 9


def writable(pod, container):
    kinds = {v["name"]: v for v in pod["volumes"]}
    for mount in container["volumeMounts"]:
        if "secret" not in kinds[mount["name"]] and not mount.get("readOnly"):
            yield Path(mount["mountPath"])


def test_what_kdlab_writes_lies_in_volumes(monkeypatch):
    """The rest of the file system cannot be written."""
    (home_folder,) = re.findall(r"^ENV KDLAB_HOME=(\S+)", CONTAINERFILE, re.MULTILINE)
    (at,) = re.findall(
        r"^WORKDIR (\S+)", CONTAINERFILE[CONTAINERFILE.index("USER") :], re.M
    )
    monkeypatch.setenv("KDLAB_HOME", home_folder)
    for pod, container in containers():
        variables = {e["name"]: e["value"] for e in container.get("env", [])}
        needed = {
            home_path(),
            Path(at),
            Path("/tmp"),
            Path(variables.get("KDLAB_RUNS", "/tmp")),
        }
        folders = list(writable(pod, container))
        for path in needed:
            assert any(path.is_relative_to(folder) for folder in folders), path
        for volume in pod["volumes"]:
            assert volume.get("emptyDir", {"sizeLimit": ""}).keys() >= {"sizeLimit"}


def test_images_are_of_this_version_and_their_base_of_one():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {c["image"] for _, c in containers()} == {f"kdlab:{version}"}
    (image,) = KUSTOMIZATION["images"]
    assert (image["name"], image["newTag"]) == ("kdlab", version)
    assert f"-t kdlab:{version} ." in DOCS
    (base,) = re.findall(r"^ARG BASE=\S+/python:(\S+)", CONTAINERFILE, re.MULTILINE)
    assert re.fullmatch(r"3\.\d+\.\d+-slim-[a-z]+", base)


# Probes


def options(container):
    return dict(re.findall(r"--([\w-]+)=(\S+)", " ".join(container["command"])))


@pytest.mark.parametrize("name", ["kdlab-scheduler", "kdlab-teachers"])
def test_what_serves_is_asked_whether_it_does(name):
    (container,) = PODS[name]["containers"]
    ports = {p["name"]: str(p["containerPort"]) for p in container["ports"]}
    flags = options(container)
    listens = {
        flags.get(n, "").lstrip(":") for n in ("port", "label-port", "dashboard-address")
    }
    assert set(ports.values()) == listens - {""}
    (folder,) = re.findall(r"^COPY deploy/answers.py (\S+)", CONTAINERFILE, re.MULTILINE)
    (at,) = re.findall(r"^WORKDIR (/opt\S+)", CONTAINERFILE, re.MULTILINE)
    for kind in ("startup", "liveness", "readiness"):
        probe = container[f"{kind}Probe"]
        if "httpGet" in probe:
            assert probe["httpGet"]["port"] in ports
            continue
        *start, program, port = probe["exec"]["command"]
        assert start == ["python", "-I"]
        assert Path(program) == Path(at, folder, "answers.py")
        assert port in ports.values()
        assert probe["timeoutSeconds"] > 5  # of answers.py, whose error is told then


def test_a_teacher_that_waits_for_its_scheduler_is_not_ended_before_its_patience_is():
    (container,) = PODS["kdlab-teachers"]["containers"]
    probe = container["startupProbe"]
    patience_s = float(options(container)["patience"])
    assert probe["periodSeconds"] * probe["failureThreshold"] > patience_s


def test_pages_of_the_scheduler_are_its_metrics_and_its_health_alone():
    (container,) = PODS["kdlab-scheduler"]["containers"]
    routes = {e["name"]: e["value"] for e in container["env"]}
    shown = {
        route
        for module in yaml.safe_load(routes["DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"])
        for route, *_ in importlib.import_module(module).routes
    }
    assert shown == {"/metrics", "/health"}


def test_each_role_has_a_secret_of_its_own_that_the_docs_make():
    roles = dict(re.findall(r"create secret generic (\S+) --from-file=tls/(\w+)", DOCS))
    used = {
        name: [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
        for name, pod in PODS.items()
    }
    (scheduler, teacher, run) = (
        used[n] for n in ("kdlab-scheduler", "kdlab-teachers", "kdlab-run")
    )
    assert [roles[s] for s in scheduler + teacher + run] == ["scheduler", "teacher", "run"]
    for pod in PODS.values():
        for volume in pod["volumes"]:
            assert "secret" not in volume or volume["secret"]["defaultMode"] == 0o440
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", "kdlab-data")
            assert f"`{claim}`" in DOCS


# Who may do what in Kubernetes


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Requests to a stand-in for Kubernetes' API, which has no cluster at first."""
    kubeconfig = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://nowhere"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    requests, there = set(), []
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    group = {"metadata": {"name": "x-default"}, "spec": {"worker": {"replicas": 0}}}

    @asynccontextmanager
    async def call_api(self, method="GET", version="v1", base="", url="", **_):
        if base == "/version":
            yield httpx.Response(200, json={"gitVersion": "v1.34.0"})
            return
        kind, _, name = url.partition("/")
        verb = verbs.get(method, "get" if name else "list")
        requests.add((version.partition("/")[0], kind, verb))
        gone = verb == "get" and not there
        there.append(kind)
        yield httpx.Response(404 if gone else 200, json=group | {"items": [group]})

    monkeypatch.setattr(Api, "call_api", call_api)
    return requests


def test_a_run_may_do_at_kubernetes_what_it_does_and_no_more(asked):
    for _ in ("a new cluster", "one that a run has left"):
        pods = KubernetesPods(KubernetesMachines(namespace="kdlab"), "x")
        pods.grow(2)
        pods.withdraw(["a"])
        pods.close()
    (role,) = of_kind("Role")
    granted = {
        granted
        for rule in role["rules"]
        for granted in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }
    assert granted == asked


def test_rights_are_given_to_an_account_that_exists_and_only_runs_have():
    (role,), (binding,) = of_kind("Role"), of_kind("RoleBinding")
    (account,) = of_kind("ServiceAccount")
    name = account["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    space = KUSTOMIZATION["namespace"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": name, "namespace": space}
    ]
    accounts = {pod: spec.get("serviceAccountName") for pod, spec in PODS.items()}
    assert accounts == {"kdlab-scheduler": None, "kdlab-teachers": None, "kdlab-run": name}
    assert account["automountServiceAccountToken"] is False


def test_the_operators_chart_has_the_values_that_the_docs_set():
    chart = importlib.resources.files("dask_kubernetes.operator") / "deployment/helm"
    values = yaml.safe_load(
        (chart / "dask-kubernetes-operator" / "values.yaml").read_text()
    )
    names = re.findall(r"--set '?([\w.]+)=", DOCS)
    assert set(names) >= {"rbac.cluster", "kopfArgs"}
    for name in names:
        first, _, second = name.partition(".")
        assert first in values
        assert not second or not values[first] or second in values[first]


# Who may reach whom


def chosen(selector, labels):
    for asked_for in selector.get("matchExpressions", []):
        assert asked_for["operator"] == "Exists"
        if asked_for["key"] not in labels:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def admits(direction, pod, partner, port):
    """Tell if the policies of a pod allow a connection with another of the namespace."""
    key = "from" if direction == "Ingress" else "to"
    rules = [
        rule
        for policy in of_kind("NetworkPolicy")
        if direction in policy["spec"]["policyTypes"]
        and chosen(policy["spec"]["podSelector"], pod)
        for rule in [None, *policy["spec"].get(direction.lower(), [])]
    ]
    if not rules:
        return True  # no policy is about it
    return any(
        port in [p["port"] for p in rule.get("ports", [{"port": port}])]
        and any(
            "namespaceSelector" not in peer
            and "podSelector" in peer
            and chosen(peer["podSelector"], partner)
            for peer in rule[key]
        )
        for rule in rules
        if rule is not None
    )


def reachable(pods, ports):
    return {
        (source, target, port)
        for source, target, port in product(pods, pods, ports)
        if admits("Egress", pods[source], pods[target], port)
        and admits("Ingress", pods[target], pods[source], port)
    }


def test_pods_reach_each_other_where_they_must_and_nobody_else_does():
    names = {
        "kdlab-scheduler": "scheduler",
        "kdlab-teachers": "teacher",
        "kdlab-run": "run",
    }
    pods = {names[n]: template["metadata"]["labels"] for n, template in TEMPLATES.items()}
    scheduler, worker, labels = 8786, 8788, 8789
    must = {
        ("teacher", "scheduler", scheduler),
        ("run", "scheduler", scheduler),
        ("scheduler", "teacher", worker),
        ("run", "teacher", labels),
        ("teacher", "teacher", labels),
    }
    assert reachable(pods, (scheduler, 8787, worker, labels, 22)) == must
    stranger = {"stranger": {"app": "something", "part": "run"}}
    assert {
        (a, b)
        for a, b, _ in reachable(pods | stranger, (scheduler, 8787, worker, labels))
        if "stranger" in (a, b)
    } == {
        ("run", "stranger"),
        ("stranger", "stranger"),
    }  # what is out there is a run's affair


def operators_pods():
    """Labels that Dask's operator gives the pods of kdlab's manifest."""
    from dask_kubernetes.operator.controller import controller

    manifest = KubernetesMachines().manifest("x")
    labels = manifest["metadata"]["labels"]
    specs = {
        "its scheduler": controller.build_scheduler_deployment_spec("x", {}, {}, labels),
        "its worker": controller.build_worker_deployment_spec(
            "x-default", "kdlab", "x", "u", {"containers": []}, {}, labels
        ),
    }
    return {n: m["spec"]["template"]["metadata"]["labels"] for n, m in specs.items()}


def test_what_the_operator_starts_is_reached_by_its_run_and_by_the_operator():
    run = TEMPLATES["kdlab-run"]["metadata"]["labels"]
    operator = {"app.kubernetes.io/name": "dask-kubernetes-operator"}
    teacher = TEMPLATES["kdlab-teachers"]["metadata"]["labels"]
    started = operators_pods()
    pods = started | {"run": run, "operator": operator, "pool": teacher}
    into = {edge for edge in reachable(pods, (8786, 40000)) if edge[1] in started}
    friends = {"run", *started}
    assert into == set(product(friends, started, (8786, 40000)))
    assert ("operator", "its scheduler", 8787) in reachable(pods, (8787,))


def test_services_policies_and_budgets_find_the_pods_they_are_for():
    pods = [template["metadata"]["labels"] for template in TEMPLATES.values()]
    pods += operators_pods().values()
    for manifest in of_kind("Service", "NetworkPolicy", "PodDisruptionBudget"):
        spec = manifest["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        if manifest["kind"] == "Service":
            selector = {"matchLabels": selector}
        assert any(chosen(selector, labels) for labels in pods)


def test_a_drained_machine_waits_for_the_scheduler_and_not_for_teachers():
    budgets = {b["metadata"]["name"]: b["spec"] for b in of_kind("PodDisruptionBudget")}
    replicas = {d["metadata"]["name"]: d["spec"]["replicas"] for d in of_kind("Deployment")}
    assert budgets.keys() == replicas.keys()
    assert budgets["kdlab-scheduler"]["minAvailable"] == replicas["kdlab-scheduler"] == 1
    assert budgets["kdlab-teachers"]["maxUnavailable"] not in (0, "0%")
    hangs = {budget["unhealthyPodEvictionPolicy"] for budget in budgets.values()}
    assert hangs == {"AlwaysAllow"}  # one that hangs may always go


def shown():
    """Names of all metrics, as Prometheus has them."""
    facts = TeacherInfo(
        name="t", pid=1, device="cpu", threads=1, best_batch=1, wire_port=1,
        by_reference=True,
    )  # fmt: skip
    status = PoolStatus(
        deployed="",
        expired=0,
        renewals=0,
        students={"s": StudentStatus(1.0, 1.0, False)},
        teachers=(TeacherStatus("a", "free", {}, 1.0, 0.1, facts),),
    )
    families = PoolMetrics(lambda: status).collect()
    return {sample.name for family in families for sample in family.samples}


def test_the_dashboard_shows_all_metrics_and_no_others():
    board = json.loads((DEPLOY / "grafana" / "kdlab.json").read_text())
    asked = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    named = set(re.findall(r"kdlab_\w+", " ".join(asked)))
    assert named <= shown()
    assert shown() - named <= {"kdlab_renewals_total", "kdlab_teacher_data_here_share"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_container_is_made_of_what_there_is():
    for line in CONTAINERFILE.splitlines():
        word, *rest = shlex.split(line, comments=True) or [""]
        if word == "COPY":
            assert all((ROOT / source).exists() for source in rest[:-1])
    (extras,) = re.findall(r'"\.\[(.*)\]"', CONTAINERFILE)
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras.split(",")) <= set(known)
    users = re.findall(r"^USER (\d+)", CONTAINERFILE, re.MULTILINE)
    assert users == [str(pod["securityContext"]["runAsUser"]) for pod in PODS.values()][:1]
