"""The node's object: registration, and a lease and status that keep it alive."""

from __future__ import annotations

import json
import platform
import threading
import time
from datetime import UTC, datetime

from tests.cluster.api import STRATEGIC_MERGE, Api, ApiError, ApiUnreachable, Object
from tests.cluster.kubelet.timestamp import now
from tests.cluster.layout import Node

PORT = 10250
LEASE_SECONDS = 20
RENEW_EVERY_SECONDS = 5.0
# Same interval as a real kubelet: after an outage, a controller may have marked a live node as not ready.
STATUS_EVERY_SECONDS = 10.0
RETRY_SECONDS = 0.5
CONFLICT, NOT_FOUND = 409, 404
# More than the machine has: the nodes share it, and only schedulers use requests.
CAPACITY = {"cpu": "16", "memory": "64Gi", "pods": "240", "ephemeral-storage": "64Gi"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Heartbeat(threading.Thread):
    """Heartbeat that permanently reports the node as ready."""

    def __init__(self, api: Api, node: Node, version: str) -> None:
        super().__init__(daemon=True)
        self._api, self._node, self._version = api, node, version
        self._began = now()
        machine = json.loads(node.registration.read_text()) if node.registration.exists() else {}
        self._capacity = {**CAPACITY, **machine.get("capacity", {})}
        self._labels, self._spec = machine.get("labels", {}), machine.get("spec", {})

    def run(self) -> None:
        reported = -STATUS_EVERY_SECONDS
        while True:
            try:
                if time.monotonic() - reported >= STATUS_EVERY_SECONDS:
                    self._register()
                    self._api.patch(f"/api/v1/nodes/{self._node.name}/status", self._status(), STRATEGIC_MERGE)
                    reported = time.monotonic()
                self._renew()
                time.sleep(RENEW_EVERY_SECONDS)
            except (ApiUnreachable, ApiError) as error:
                print(f"heartbeat: {error}", flush=True)
                # After an outage the node may count as not ready, so report its status at once.
                reported = -STATUS_EVERY_SECONDS
                time.sleep(RETRY_SECONDS)

    def _register(self) -> None:
        labels = {
            "kubernetes.io/hostname": self._node.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": architecture(),
            "topology.kubernetes.io/zone": f"zone-{self._node.number}",
            **self._labels,
        }
        spec = {"podCIDR": self._node.pods[0], "podCIDRs": list(self._node.pods), **self._spec}
        try:
            self._api.post("/api/v1/nodes", {"metadata": {"name": self._node.name, "labels": labels}, "spec": spec})
        except ApiError as error:
            if error.status != CONFLICT:
                raise

    def _renew(self) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._node.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": moment}
        try:
            self._api.patch(f"{LEASES}/{self._node.name}", {"spec": spec})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._api.post(LEASES, {"metadata": {"name": self._node.name}, "spec": spec})

    def _status(self) -> Object:
        addresses = [{"type": "InternalIP", "address": address} for address in self._node.addresses]
        return {
            "status": {
                "capacity": self._capacity,
                "allocatable": self._capacity,
                "addresses": [{"$patch": "replace"}, *addresses, {"type": "Hostname", "address": self._node.name}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
                "nodeInfo": self._info(),
                "conditions": [
                    self._condition("Ready", True, "KubeletReady"),
                    self._condition("MemoryPressure", False, "KubeletHasSufficientMemory"),
                    self._condition("DiskPressure", False, "KubeletHasNoDiskPressure"),
                    self._condition("PIDPressure", False, "KubeletHasSufficientPID"),
                ],
            }
        }

    def _condition(self, kind: str, holds: bool, reason: str) -> Object:
        return {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": reason,
            "lastHeartbeatTime": now(),
            "lastTransitionTime": self._began,
        }

    def _info(self) -> Object:
        return {
            "kubeletVersion": self._version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": architecture(),
            "kernelVersion": platform.release(),
            "osImage": "processes",
            "containerRuntimeVersion": "process://1",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        }


def architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
