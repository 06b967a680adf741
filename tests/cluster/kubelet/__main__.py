"""The kubelet of one node, whose network namespace it is started in.

python -m tests.cluster.kubelet NODE
"""

from __future__ import annotations

import shutil
import sys
import threading

from tests.cluster import certificates
from tests.cluster.api import Api, Object, follow
from tests.cluster.kubelet.contents import Contents
from tests.cluster.kubelet.events import Events
from tests.cluster.kubelet.heartbeat import PORT, Heartbeat
from tests.cluster.kubelet.pod import Home, Pod
from tests.cluster.kubelet.reporter import Reporter
from tests.cluster.kubelet.sandbox import Addresses
from tests.cluster.kubelet.server import Server
from tests.cluster.places import Node, node
from tests.cluster.processes import top_group


class Kubelet:
    """Which pods are here."""

    def __init__(self, here: Node, api: Api) -> None:
        self._pods: dict[str, Pod] = {}
        self._api = api
        self._contents = Contents(api, self._refresh)
        # Of a kubelet before this one nothing goes on: its pods begin anew.
        group = top_group().child(here.name).child("pods")
        group.remove()
        shutil.rmtree(here.folder / "pods", ignore_errors=True)
        self._home = Home(here, group.create(), Addresses(), self._contents, Reporter(api), Events(api, here.name))
        group.delegate_controllers()

    def run(self) -> None:
        self._contents.start()
        self._home.reporter.start()
        self._home.events.start()
        selector = f"spec.nodeName={self._home.node.name}"
        follow(self._api, "/api/v1/pods", self._seen, self._gone, fieldSelector=selector)

    def find(self, namespace: str, name: str) -> Pod | None:
        """The one whose logs are asked for by this name; the newest, if one of it is just ending."""
        for pod in reversed(list(self._pods.values())):
            metadata = pod.object["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return pod
        return None

    def _seen(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if pod := self._pods.get(uid):
            self._home.reporter.seen(item)
            pod.offer(item)
        elif (
            item.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            or "deletionTimestamp" in item["metadata"]
        ):
            self._pods[uid] = pod = Pod(item, self._home)
            pod.start()

    def _gone(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if pod := self._pods.pop(uid, None):
            pod.forget()
        self._contents.forget(uid)
        self._home.reporter.forget(uid)

    def _refresh(self, namespace: str) -> None:
        """Something that its pods may have a volume of has changed."""
        for pod in list(self._pods.values()):
            if pod.object["metadata"]["namespace"] == namespace:
                pod.poke()


def main(name: str) -> None:
    here = node(name)
    api = Api(certificates.kubeconfig(name))
    kubelet = Kubelet(here, api)
    threading.Thread(target=Server(here, PORT, kubelet.find).serve_forever, daemon=True).start()
    version = api.get("/version")["gitVersion"]
    Heartbeat(api, here, version).start()
    kubelet.run()


if __name__ == "__main__":
    main(sys.argv[1])
