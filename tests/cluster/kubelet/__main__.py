"""Kubelet of one node, which runs in the node's network namespace.

python -m tests.cluster.kubelet NODE
"""

from __future__ import annotations

import shutil
import sys
import threading

from tests.cluster import certificates
from tests.cluster.api import Api, Object, follow
from tests.cluster.kubelet import resource_metrics
from tests.cluster.kubelet.contents import ApiContents
from tests.cluster.kubelet.events import EventRecorder
from tests.cluster.kubelet.heartbeat import PORT, Heartbeat
from tests.cluster.kubelet.pod import NodeContext, Pod
from tests.cluster.kubelet.reporter import StatusReporter
from tests.cluster.kubelet.sandbox import AddressPool
from tests.cluster.kubelet.server import Server
from tests.cluster.layout import Node, node
from tests.cluster.processes import top_group


class Kubelet:
    """Pods of the node."""

    def __init__(self, here: Node, api: Api) -> None:
        self._pods: dict[str, Pod] = {}
        self._api = api
        self._contents = ApiContents(api, self._refresh)
        # The pods of an earlier kubelet do not continue: they restart.
        self._node_group = top_group().child(here.name)
        group = self._node_group.child("pods")
        group.remove()
        shutil.rmtree(here.folder / "pods", ignore_errors=True)
        self._node_context = NodeContext(
            here, group.create(), AddressPool(), self._contents, StatusReporter(api), EventRecorder(api, here.name)
        )
        group.delegate_controllers()

    def run(self) -> None:
        self._contents.start()
        self._node_context.reporter.start()
        self._node_context.events.start()
        selector = f"spec.nodeName={self._node_context.node.name}"
        follow(self._api, "/api/v1/pods", self._on_change, self._on_delete, fieldSelector=selector)

    def find(self, namespace: str, name: str) -> Pod | None:
        """Returns the newest pod of this name, for its logs."""
        for pod in reversed(list(self._pods.values())):
            metadata = pod.object["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return pod
        return None

    def resource_metrics(self) -> str:
        """Returns the use of CPU and memory by the pods."""
        running = [container for pod in list(self._pods.values()) for container in pod.running_containers()]
        return resource_metrics.text(running, self._node_group)

    def _on_change(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if pod := self._pods.get(uid):
            self._node_context.reporter.observe(item)
            pod.update(item)
        elif (
            item.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            or "deletionTimestamp" in item["metadata"]
        ):
            self._pods[uid] = pod = Pod(item, self._node_context)
            pod.start()

    def _on_delete(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if pod := self._pods.pop(uid, None):
            pod.delete()
        self._contents.forget(uid)
        self._node_context.reporter.forget(uid)

    def _refresh(self, namespace: str) -> None:
        """Wakes the pods of a namespace, because a source of their volumes may have changed."""
        for pod in list(self._pods.values()):
            if pod.object["metadata"]["namespace"] == namespace:
                pod.wake()


def main(name: str) -> None:
    here = node(name)
    api = Api(certificates.kubeconfig(name))
    kubelet = Kubelet(here, api)
    server = Server(here, PORT, kubelet.find, kubelet.resource_metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    version = api.get("/version")["gitVersion"]
    Heartbeat(api, here, version).start()
    kubelet.run()


if __name__ == "__main__":
    main(sys.argv[1])
