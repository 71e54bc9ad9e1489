"""Kubernetes pods, started by Dask's operator: a scheduler, and workers that host teachers."""

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from kdlab.cluster.deployers.deployer import Deployer
from kdlab.cluster.machines import Machines
from kdlab.cluster.transport.roles import TEACHER
from kdlab.cluster.transport.security import Files
from kdlab.config import Fault, Range, register
from kdlab.errors import ClusterError

_API = "kubernetes.dask.org/v1"
_PORT = 8786
# With the run's hash and -scheduler it is a host name.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
_TLS = ("--tls-ca-file=/tls/ca.pem", "--tls-cert=/tls/cert.pem", "--tls-key=/tls/key.pem")
_NOBODY = 10001  # the user of deploy/Containerfile
_AS_NOBODY = {
    "runAsNonRoot": True,
    "runAsUser": _NOBODY,
    "fsGroup": _NOBODY,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_NO_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@register("cluster/deployers/kubernetes")
@dataclass(frozen=True, kw_only=True)
class KubernetesMachines(Deployer):
    """Pods, started by Dask's operator, which must be installed in the cluster.

    The run is a pod too, or reaches the cluster's services; the certificates of `teacher_pool.tls`
    are also in a Secret, with the keys ca.pem, cert.pem and key.pem. The operator chooses which pod
    ends when fewer are needed; requests to its teacher go to another one.

    name: of the cluster, followed by a hash of the run; a killed run leaves it there until it is
        resumed, or until `kubectl delete daskcluster -l app=kdlab`.
    namespace: of the cluster.
    image: with kdlab in it (deploy/Containerfile).
    cpu, memory: of each pod, as Kubernetes writes them.
    gpus: of each pod.
    secret: with the certificates.
    data: claim of a volume with the data, mounted at /data; null where pixels are sent.
    """

    brings_scheduler = True
    needs = ("kr8s", "kubernetes")

    name: str = "kdlab"
    namespace: str = "default"
    image: str = "kdlab"
    cpu: str = "1"
    memory: str = "2Gi"
    gpus: Annotated[int, Range(ge=0)] = 0
    secret: str = "kdlab-tls"  # its name
    data: str | None = None

    def cross_faults(self) -> Iterator[Fault]:
        for field in ("name", "namespace", "secret"):
            value = getattr(self, field)
            if not _NAME.fullmatch(value):
                yield Fault(
                    field,
                    f"is {value!r}; small letters, digits and -, 32 at most, as a name of a host",
                )

    def cluster(self, scheduler: str, files: Files, folder: Path) -> "KubernetesPods":
        of_run = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]
        return KubernetesPods(self, f"{self.name}-{of_run}")

    def address(self, name: str) -> str:
        """Address of the scheduler of the cluster with this name."""
        return f"tls://{name}-scheduler.{self.namespace}.svc.cluster.local:{_PORT}"

    def manifest(self, name: str) -> dict[str, Any]:
        """Manifest of the DaskCluster, at first without workers."""
        port = {"name": "tcp-comm", "protocol": "TCP"}
        scheduler = self._pod(
            "scheduler",
            ["dask", "scheduler", "--protocol=tls", f"--port={_PORT}", *_TLS, "--no-dashboard",
             "--preload=kdlab.cluster.coordinator"],
            {"requests": {"cpu": "500m", "memory": "1Gi"}},
            ports=[{**port, "containerPort": _PORT}],
            readinessProbe={"tcpSocket": {"port": "tcp-comm"}},
        )  # fmt: skip
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        has = {"cpu": self.cpu, "memory": self.memory, **gpus}
        worker = self._pod(
            "worker",
            ["dask", "worker", self.address(name), "--name=$(DASK_WORKER_NAME)", *_TLS,
             f"--resources={TEACHER}=1", "--nthreads=1", "--no-nanny", "--no-dashboard",
             "--worker-class=kdlab.cluster.transport.roles.TeacherWorker"],
            {"requests": has, "limits": has},
        )  # fmt: skip
        service = {
            "type": "ClusterIP",
            "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
            "ports": [{**port, "port": _PORT, "targetPort": "tcp-comm"}],
        }
        meta = {"name": name, "namespace": self.namespace, "labels": {"app": "kdlab"}}
        parts = {
            "worker": {"replicas": 0, "spec": worker},
            "scheduler": {"spec": scheduler, "service": service},
        }
        return {"apiVersion": _API, "kind": "DaskCluster", "metadata": meta, "spec": parts}

    def _pod(
        self, name: str, command: list[str], resources: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        tls = {"secretName": self.secret, "defaultMode": 0o440}
        volumes: list[dict[str, Any]] = [{"name": "tls", "secret": tls}]
        mounts = [{"name": "tls", "mountPath": "/tls", "readOnly": True}]
        if self.data is not None:
            claim = {"claimName": self.data, "readOnly": True}
            volumes.append({"name": "data", "persistentVolumeClaim": claim})
            mounts.append({"name": "data", "mountPath": "/data", "readOnly": True})
        container = {
            "name": name,
            "image": self.image,
            "args": command,
            "resources": resources,
            "securityContext": _NO_RIGHTS,
            "volumeMounts": mounts,
            **more,
        }
        return {
            "automountServiceAccountToken": False,
            "securityContext": _AS_NOBODY,
            "containers": [container],
            "volumes": volumes,
        }


class KubernetesPods(Machines):
    """A running DaskCluster."""

    adjustable = True

    def __init__(self, spec: KubernetesMachines, name: str) -> None:
        self.spec, self.name, self.address = spec, name, spec.address(name)
        self._asked = 0
        with _api_errors(f"make the DaskCluster {name}"):
            self.cluster = _resource("DaskCluster")(spec.manifest(name))
            # A killed run leaves its cluster, which the resumed run uses.
            if self.cluster.exists():
                self._scale(0)
            else:
                self.cluster.create()

    def wanted(self) -> int:
        return self._asked

    def grow(self, count: int) -> None:
        self._scale(self._asked + count)

    def withdraw(self, names: Sequence[str]) -> None:
        self._scale(max(0, self._asked - len(names)))

    def _scale(self, count: int) -> None:
        spec = self.spec
        with _api_errors(f"have {count} workers of the DaskCluster {self.name}"):
            group = _resource("DaskWorkerGroup").get(
                f"{self.name}-default", namespace=spec.namespace
            )
            group.patch({"spec": {"worker": {"replicas": count}}})
        self._asked = count

    def close(self, *, scheduler_gone: bool = False) -> None:
        try:
            with _api_errors(f"delete the DaskCluster {self.name}"):
                self.cluster.delete()
        except ClusterError as error:
            logging.getLogger("kdlab").warning("%s", error)


@contextmanager
def _api_errors(what: str) -> Iterator[None]:
    """Raise errors of the cluster's API as ClusterError."""
    import httpx  # comes with kr8s, an extra  # noqa: PLC0415
    import kr8s  # noqa: PLC0415

    known = (kr8s.ServerError, kr8s.NotFoundError, kr8s.APITimeoutError, httpx.HTTPError)
    try:
        yield
    except known as error:
        raise ClusterError(
            f"Kubernetes did not {what}: {error}. Is Dask's operator installed there, and may you "
            "make daskclusters? kubectl auth can-i create daskclusters.kubernetes.dask.org"
        ) from error


def _resource(kind: str) -> Any:
    from kr8s.objects import new_class  # an extra  # noqa: PLC0415

    return new_class(kind, version=_API, namespaced=True)
