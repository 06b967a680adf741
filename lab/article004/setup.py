"""Clients with browsers, each at the end of a link; edges and their one backend at the other end."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from lab import certificate
from lab.article004 import sites
from lab.article004.client import Client
from lab.balancers import BalancerTask, Placement, RunningBalancer, balancer
from lab.certificate import Certificate
from lab.child import Child
from lab.testbed.cgroups import ControlGroup

NETWORK = "10.99.0"
EDGE = f"{NETWORK}.1"
FIRST_CLIENT = 2
FIRST_PORT = 8443
BACKEND = "backend"


class PageLoadSetup:
    """Setup of a whole run; edges and clients start on demand."""

    def __init__(self, top: ControlGroup, builds: Mapping[str, Path], folder: Path, exit_stack: ExitStack) -> None:
        self._top = top
        self._builds = builds
        self._folder = folder
        self._exit_stack = exit_stack
        self._edges: dict[tuple[str, str], RunningBalancer] = {}
        self._certificate = certificate.make(folder)
        self._clients: list[Client] = []
        self._backend, self._backend_child = sites.start_backend(self._placement(BACKEND))
        exit_stack.callback(self._backend_child.stop)

    def clients(self, count: int) -> Sequence[Client]:
        """Returns `count` clients; starts missing ones, which run until the end."""
        while (number := len(self._clients)) < count:
            name, address = f"client-{number + 1}", f"{NETWORK}.{FIRST_CLIENT + number}"
            folder = self._folder / name
            self._clients.append(
                Client(name, address, EDGE, pin(self._certificate), self._top, folder, self._exit_stack)
            )
        return self._clients[:count]

    def edge(self, name: str, congestion_control: str) -> int:
        """Returns the port of an edge with this QUIC congestion control; starts it if necessary."""
        key = (name, congestion_control)
        if key not in self._edges:
            port = FIRST_PORT + len(self._edges)
            task = BalancerTask(
                (self._backend,), certificate=self._certificate, http3=True, quic_congestion_control=congestion_control
            )
            program = self._builds.get(name)
            placement = self._placement(f"{name}-{congestion_control}", EDGE, port, program)
            running = balancer("sheave" if program else name).start(task, placement)
            self._exit_stack.callback(running.child.stop)
            self._edges[key] = running
        return FIRST_PORT + list(self._edges).index(key)

    def _placement(self, name: str, host: str = "127.0.0.1", port: int = 0, program: Path | None = None) -> Placement:
        folder = self._folder / name
        folder.mkdir()
        return Placement(folder, partial(self._launch, name), host, port, program)

    def _launch(self, name: str, argv: Sequence[object], log: Path) -> Child:
        return Child(self._top.child(name).create().enter_command(argv), log)

    def cpu_seconds(self) -> float:
        """Returns the CPU time of everything that runs for the lab."""
        return self._top.cpu_seconds()

    def check(self) -> None:
        """Raises if a required process has ended."""
        children = (self._backend_child, *(running.child for running in self._edges.values()))
        for each in (*self._clients, *children):
            each.check()


@contextmanager
def open_setup(top: ControlGroup, builds: Mapping[str, Path], folder: Path) -> Iterator[PageLoadSetup]:
    """Yields a setup with the backend; removes everything afterwards. `builds` maps edge names to other builds of
    Sheave.
    """
    with ExitStack() as exit_stack:
        yield PageLoadSetup(top, builds, folder, exit_stack)


def pin(certificate: Certificate) -> str:
    """Returns the SHA-256 of a certificate's key in base64, which the browser uses as a pin."""
    argv = ["openssl", "x509", "-in", str(certificate.chain), "-noout", "-pubkey"]
    key = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    body = "".join(line for line in key.splitlines() if not line.startswith("-"))
    return base64.b64encode(hashlib.sha256(base64.b64decode(body)).digest()).decode()
