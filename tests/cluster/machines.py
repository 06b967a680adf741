"""Machines that an autoscaler of nodes starts and removes. Each is a spare node, which boots for some time first.

An HTTP server on a Unix socket: POST /machines with `labels` starts one, GET lists them or says what one is, DELETE
removes one at once. The ID of a machine is "sheave://" and the name of its node.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from tests.cluster import certificates, network, nodes
from tests.cluster.layout import SPARE_NODES, STATE, Node
from tests.cluster.processes import make_groups

SOCKET = STATE / "machines.sock"
SCHEME = "sheave://"
CAPACITY = {"cpu": "2", "memory": "4Gi", "pods": "20", "ephemeral-storage": "16Gi"}
# A node with it gets no pods until the autoscaler has registered it (karpenter.sh/v1).
UNREGISTERED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}


@dataclass
class Machine:
    """A machine that boots or runs."""

    node: Node
    labels: dict[str, str]
    began: float = field(default_factory=time.monotonic)
    removed: threading.Event = field(default_factory=threading.Event)
    booting: threading.Thread | None = None

    def summary(self) -> dict[str, Any]:
        return {"id": f"{SCHEME}{self.node.name}", "labels": self.labels}


class Machines:
    """The machines, and what they have cost."""

    def __init__(self, boot_seconds: float) -> None:
        self.boot_seconds = boot_seconds
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}
        self._ended_seconds = 0.0

    def running(self) -> list[Machine]:
        with self._lock:
            return list(self._machines.values())

    def machine_seconds(self) -> float:
        """Returns the time that machines have been paid for: from the request for each to its removal."""
        with self._lock:
            now = time.monotonic()
            return self._ended_seconds + sum(now - it.began for it in self._machines.values())

    def create(self, labels: dict[str, str]) -> Machine | None:
        """Starts a machine; returns None if all are in use."""
        with self._lock:
            free = [node for node in SPARE_NODES if node.name not in self._machines]
            if not free:
                return None
            made = Machine(free[0], labels)
            self._machines[made.node.name] = made
            made.booting = threading.Thread(target=self._boot, args=(made,), daemon=True)
        made.booting.start()
        return made

    def find(self, name: str) -> Machine | None:
        with self._lock:
            return self._machines.get(name)

    def remove(self, name: str) -> bool:
        """Removes a machine, also one that boots; returns false if there is none."""
        if (gone := self.find(name)) is None:
            return False
        with self._lock:
            if gone.removed.is_set():
                return False
            gone.removed.set()
        if gone.booting:
            gone.booting.join()
        if gone.node.folder.exists():
            nodes.remove(gone.node)
        with self._lock:
            del self._machines[name]
            self._ended_seconds += time.monotonic() - gone.began
        return True

    def remove_all(self) -> None:
        for machine in self.running():
            self.remove(machine.node.name)

    def _boot(self, machine: Machine) -> None:
        if machine.removed.wait(self.boot_seconds):
            return
        node = machine.node
        node.folder.mkdir()
        spec = {"providerID": f"{SCHEME}{node.name}", "taints": [UNREGISTERED]}
        node.registration.write_text(json.dumps({"capacity": CAPACITY, "labels": machine.labels, "spec": spec}))
        certificates.make_kubelet(node)
        network.add_node(node)
        make_groups([node.name])
        nodes.start(node)


class MachineServer(ThreadingMixIn, UnixStreamServer):
    """The server of the machines' API."""

    daemon_threads = True

    def __init__(self, machines: Machines, path: Path = SOCKET) -> None:
        self.machines = machines
        super().__init__(str(path), Handler)


class Handler(BaseHTTPRequestHandler):
    """One request of the machines' API."""

    server: MachineServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        machines = self.server.machines
        if not self._name():
            self._answer(HTTPStatus.OK, [it.summary() for it in machines.running()])
        elif found := machines.find(self._name()):
            self._answer(HTTPStatus.OK, found.summary())
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        try:
            labels = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))["labels"]
        except (ValueError, KeyError, TypeError):
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        made = self.server.machines.create(labels)
        if made:
            self._answer(HTTPStatus.OK, made.summary())
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE)

    def do_DELETE(self) -> None:
        gone = self.server.machines.remove(self._name())
        self._answer(HTTPStatus.OK if gone else HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: object) -> None:
        """Writes no log: a Unix socket's client has no address, which the default expects."""

    def _name(self) -> str:
        return self.path.removeprefix("/machines").strip("/")

    def _answer(self, status: HTTPStatus, body: object = None) -> None:
        text = json.dumps(body).encode()
        # An autoscaler that was killed does not wait for the removal of a machine.
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
