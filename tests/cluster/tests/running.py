"""Cluster for tests: started on demand or the reason why not, and helpers for its objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unittest
import uuid
from collections.abc import Callable
from typing import TypeVar

from tests.cluster import cluster, network, programs
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.layout import KUBECONFIG, Node

PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.05
NOT_FOUND = 404
ECHO = "registry.k8s.io/gateway-api/echo-basic:v1"

# NODE=real tests a real kubelet.
REAL = "n3" if os.environ.get("NODE") == "real" else None
PLACE = {"nodeName": REAL} if REAL else {}

Value = TypeVar("Value")


def obstacle() -> str | None:
    """Returns the reason why tests cannot have a cluster, or None."""
    if reason := cluster.obstacle():
        return f"no cluster here: {reason}"
    if missing := programs.missing():
        return f"the cluster is not built ({', '.join(missing)}): `make cluster` builds it"
    return None


def start() -> None:
    """Starts the cluster for a module's tests; skips them if another cluster is running."""
    if reason := obstacle():
        raise unittest.SkipTest(reason)
    try:
        cluster.up(REAL)
    except cluster.ClusterExists as error:
        raise unittest.SkipTest(str(error)) from error


def stop() -> None:
    cluster.down()


class ClusterTest(unittest.TestCase):
    """Test case with its own namespace."""

    def setUp(self) -> None:
        self.api = Api(KUBECONFIG)
        self.addCleanup(self.api.close)
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.api.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.addCleanup(self.api.delete, f"/api/v1/namespaces/{self.namespace}")
        # A controller creates the service account that pods need.
        self.wait(
            lambda: self.api.get(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"), "service account"
        )

    def path(self, kind: str, name: str = "") -> str:
        group = {"deployments": "/apis/apps/v1"}.get(kind, "/api/v1")
        return f"{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def make(self, kind: str, name: str, **content: object) -> Object:
        return self.api.post(self.path(kind), {"metadata": {"name": name, "labels": {"app": name}}, **content})

    def make_pod(self, name: str, *containers: Object, **spec: object) -> Object:
        return self.make("pods", name, spec={"containers": list(containers), **PLACE, **spec})

    def get(self, kind: str, name: str) -> Object | None:
        try:
            return self.api.get(self.path(kind, name))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def wait(self, value: Callable[[], Value], what: str, patience: float = PATIENCE_SECONDS) -> Value:
        """Polls until the value is true; returns it."""
        deadline = time.monotonic() + patience
        problem = ""
        while time.monotonic() < deadline:
            try:
                if found := value():
                    return found
            except ApiError as error:
                problem = str(error)
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{what} missing after {patience:.0f} s {problem}")

    def wait_for_pod(self, name: str, holds: Callable[[Object], object], what: str) -> Object:
        seen: Object = {}

        def look() -> Object | None:
            nonlocal seen
            seen = self.api.get(self.path("pods", name))
            return seen if holds(seen) else None

        try:
            return self.wait(look, f"pod {name}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its status is {json.dumps(seen.get('status'))}") from None

    def events(self, name: str) -> list[str]:
        """Returns the events of a pod."""
        selector = f"involvedObject.name={name}"
        return [event["message"] for event in self.api.get(self.path("events"), fieldSelector=selector)["items"]]

    def wait_until_ready(self, name: str) -> Object:
        return self.wait_for_pod(name, is_ready, "ready")

    def wait_until_gone(self, name: str) -> None:
        self.wait(lambda: self.get("pods", name) is None, f"end of pod {name}")

    def logs(self, name: str, **query: object) -> list[str]:
        return self.api.text(self.path("pods", name) + "/log", **query).splitlines()

    def wait_for_logs(self, name: str, *wanted: str) -> list[str]:
        def look() -> list[str] | None:
            lines = self.logs(name)
            return lines if all(any(text in line for line in lines) for text in wanted) else None

        return self.wait(look, f"{wanted} in the log of {name}")


def container(image: str, *command: str, **more: object) -> Object:
    return {"name": "c", "image": image, **({"command": list(command)} if command else {}), **more}


def shell(script: str, **more: object) -> Object:
    return container("busybox:1", "sh", "-c", script, **more)


def is_ready(pod: Object) -> bool:
    return any(known["type"] == "Ready" and known["status"] == "True" for known in pod["status"].get("conditions", []))


def status_of(pod: Object, index: int = 0) -> Object:
    return (pod["status"].get("containerStatuses") or [{}])[index]


def on_node(node: Node, code: str) -> str:
    """Runs Python code in a node's network namespace; returns its output."""
    argv = [*network.netns_prefix(node.namespace), sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    return done.stdout + done.stderr


def fetch(node: Node, url: str) -> str:
    code = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=3).read().decode())"
    return on_node(node, code)
