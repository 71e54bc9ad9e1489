"""What stands in deploy/ fits Kubernetes, kdlab and the metrics that there are."""

import json
import re
import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from kdlab.cli import parser
from kdlab.cluster.coordination.coordinator_messages import (
    PoolStatus,
    StudentStatus,
    TeacherStatus,
)
from kdlab.cluster.coordination.metrics import PoolMetrics
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VERSIONS = ("1.30", "1.34")
OBJECTS = [
    pytest.param(found, id=f"{path.name}:{found['kind']}:{found['metadata']['name']}")
    for path in sorted(DEPLOY.glob("kubernetes/*.yaml"))
    for found in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", OBJECTS)
def test_kubernetes_takes_each_object(found, version):
    kubernetes_validate.validate(found, version, strict=True)


def test_a_misspelt_key_would_be_seen():
    (found, *_) = (o.values[0] for o in OBJECTS)
    wrong = json.loads(json.dumps(found))
    wrong["spec"]["replcas"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def containers():
    for one in OBJECTS:
        (found,) = one.values
        if found["kind"] == "Deployment":
            spec = found["spec"]["template"]["spec"]
            yield spec, spec["containers"][0]


def test_commands_are_those_that_kdlab_takes_and_their_files_are_mounted():
    teachers = [c for _, c in containers() if c["command"][0] == "kdlab"]
    assert teachers
    for container in teachers:
        parser().parse_args(container["command"][1:])  # ends the process where it is wrong
    for spec, container in containers():
        mounted = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        assert set(mounted.values()) == {volume["name"] for volume in spec["volumes"]}
        for path in re.findall(r"=(/\S+)", " ".join(container["command"])):
            assert str(Path(path).parent) in mounted


def test_services_and_policies_find_the_pods_they_are_for():
    pods = [
        o.values[0]["spec"]["template"]["metadata"]["labels"]
        for o in OBJECTS
        if o.values[0]["kind"] == "Deployment"
    ]
    for one in OBJECTS:
        (found,) = one.values
        spec = found["spec"]
        chosen = spec.get("podSelector", {}).get("matchLabels")
        if found["kind"] == "Service":
            chosen = spec["selector"]
        if chosen is not None:
            assert any(chosen.items() <= labels.items() for labels in pods)


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
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        word, *rest = shlex.split(line, comments=True) or [""]
        if word == "COPY":
            assert all((ROOT / source).exists() for source in rest[:-1])
    (extras,) = re.findall(r'"\.\[(.*)\]"', text)
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras.split(",")) <= set(known)
