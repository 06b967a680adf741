"""A Deployment behind a Service of type ClusterIP; replicas are named app-1, app-2 ... as they become ready."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.kubernetes.containers import NAME
from lab.kubernetes.endpoints import EndpointWatch, PublishedPod
from lab.kubernetes.session import ClusterSession, wait
from lab.testbed.cgroups import ControlGroup
from tests.cluster.api import Object
from tests.cluster.processes import top_group

APP = "app"
SERVICE_PORT = 80
READY_SECONDS = 120
GONE_SECONDS = 60
ESTABLISHED = "01"


@dataclass(frozen=True)
class Replica:
    """A ready pod, its name in the results, and its control group."""

    name: str
    published: PublishedPod

    @property
    def _group(self) -> ControlGroup:
        return top_group().child(self.published.node).child("pods").child(self.published.uid)

    def cpu_seconds(self) -> float:
        return self._group.cpu_seconds()

    def connections(self, port: int) -> int:
        """Returns the number of established connections to a port of the pod."""
        for pid in self._group.child(NAME).processes():
            # The process, or its pod, may just have ended.
            with contextlib.suppress(OSError):
                tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
                return sum(established(table, port) for table in tables)
        return 0


class Deployment:
    """The Deployment `app` with the Service `app`, until it is removed."""

    def __init__(self, session: ClusterSession, template: Object, port: int, replicas: int) -> None:
        self._session = session
        session.apply(*objects(template, port, replicas))
        self._watch = EndpointWatch(session.api, APP)
        wait(lambda: len(self.replicas) == replicas, f"{replicas} ready replicas", READY_SECONDS)

    @property
    def replicas(self) -> list[Replica]:
        """Replicas in the order in which they became ready."""
        return [Replica(f"app-{n}", published) for n, published in enumerate(self._watch.published, 1)]

    @property
    def names(self) -> dict[str, str]:
        """Names in the results by the names of the pods."""
        return {replica.published.pod: replica.name for replica in self.replicas}

    @property
    def address(self) -> str:
        """Address and port of the Service."""
        service = self._session.api.get(f"/api/v1/namespaces/default/services/{APP}")
        return f"{service['spec']['clusterIP']}:{SERVICE_PORT}"

    def scale(self, replicas: int) -> None:
        self._session.kubectl("scale", f"deployment/{APP}", f"--replicas={replicas}")

    def annotate(self, *annotations: str) -> None:
        """Annotates the Service."""
        self._session.kubectl("annotate", f"service/{APP}", *annotations)

    def remove(self) -> None:
        self._watch.end()
        self._session.kubectl("delete", "--wait=false", f"service/{APP}", f"deployment/{APP}")
        self._session.wait_until_gone(APP, GONE_SECONDS)


@contextlib.contextmanager
def deployed(session: ClusterSession, template: Object, port: int, replicas: int) -> Iterator[Deployment]:
    """Yields a Deployment with so many ready replicas; removes it afterwards."""
    deployment = Deployment(session, template, port, replicas)
    yield deployment
    # If the experiment fails, the whole cluster is removed instead.
    deployment.remove()


def objects(template: Object, port: int, replicas: int) -> list[Object]:
    """Returns the Deployment and the Service."""
    labels, metadata = {"app": APP}, {"name": APP, "namespace": "default"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": labels, "ports": [{"port": SERVICE_PORT, "targetPort": port}]},
    }
    return [service, deployment]


def established(table: str, port: int) -> int:
    """Counts the established connections to a local port in /proc/net/tcp or tcp6."""
    rows = (line.split() for line in table.splitlines()[1:])
    return sum(row[3] == ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows)
