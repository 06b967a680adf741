"""Replicas of Sheave that share the slots of pods, and pods that count their requests in flight."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import SYSTEM, GatewayTest, is_ending
from tests.cluster.api import Object

COUNTING_SERVER = Path(__file__).with_name("counting_server.py")
# A replica drains for 35 s at most; the machine may be busy.
PATIENCE_SECONDS = 120.0
PODS_OF_SHEAVE = "/api/v1/namespaces/sheave-system/pods"


class ReplicaGroupTest(GatewayTest):
    """Test whose pods count, behind replicas of Sheave that come and go."""

    def serve_counting(self, pods: int, cap: int, long_every: int = 0, **pod_settings: object) -> None:
        """Serves counting pods whose cap is `cap`; by default none of their requests is a long one."""
        env = ({"name": "CAP", "value": str(cap)}, {"name": "LONG_EVERY", "value": str(long_every)})
        server = gateway.python_server(COUNTING_SERVER.read_text(), *env)
        self.serve(pods, server, pod_settings=pod_settings)

    def limit(self, **spec: object) -> str:
        """Creates the BackendPolicy of the pods' Service; returns its path."""
        policies = f"/apis/sheave.dev/v1alpha1/namespaces/{self.namespace}/backendpolicies"
        body = {
            "apiVersion": "sheave.dev/v1alpha1",
            "kind": "BackendPolicy",
            "metadata": {"name": "web"},
            "spec": {"targetRefs": [{"kind": "Service", "name": "web"}], **spec},
        }
        self.api.post(policies, body)
        return f"{policies}/web"

    def have_replicas(self, count: int) -> None:
        """Scales Sheave, and waits until the slots are divided among this many replicas."""
        self.api.patch(SYSTEM, {"spec": {"replicas": count}})
        self.wait(
            lambda: len(self.replicas()) == count and self.is_rolled_out(SYSTEM, 0),
            f"{count} replicas of Sheave",
            PATIENCE_SECONDS,
        )
        # A new replica takes part only after the others have released its share, and one that has left counts for some
        # time.
        self.wait(
            lambda: all(gateway.metric(address, "sheave_replicas") == count for address in self.replicas()),
            f"limits that are divided among {count} replicas",
            PATIENCE_SECONDS,
        )

    def replica_pods(self) -> list[Object]:
        pods = self.api.get(PODS_OF_SHEAVE, labelSelector="app.kubernetes.io/name=sheave")["items"]
        return [pod for pod in pods if "podIP" in pod["status"] and not is_ending(pod)]

    def replicas(self) -> set[str]:
        """Returns the addresses of the replicas themselves."""
        return {pod["status"]["podIP"] for pod in self.replica_pods()}

    def counts(self) -> list[Object]:
        """Returns the counts of each pod, from the pod itself."""
        pods = self.api.get(self.path("pods"), labelSelector="app=web")["items"]
        return [fetch(pod["status"]["podIP"], 3000, "/counts") for pod in pods if not is_ending(pod)]

    def observe_pods(self, seconds: float) -> tuple[float, dict[str, int]]:
        """Returns the mean number of requests in flight at all pods together over this time, and the most at each."""
        before = self.counts()
        time.sleep(seconds)  # The load that is measured.
        after = self.counts()
        busy = sum(it["busy_seconds"] for it in after) - sum(it["busy_seconds"] for it in before)
        return busy / (after[0]["at"] - before[0]["at"]), {it["pod"]: it["most_since_report"] for it in after}


def fetch(address: str, port: int, path: str) -> Object:
    """Returns the JSON at a pod's own address."""
    with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=10) as response:
        return json.load(response)
