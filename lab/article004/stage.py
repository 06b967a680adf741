"""A client with a browser at one end of a line; edges and the one backend behind them at the other."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from lab import certificate
from lab.article004 import sites
from lab.article004.browser import Browser
from lab.balancers import Running, Site, Task, balancer
from lab.certificate import Certificate
from lab.child import Child
from lab.testbed import hosts
from lab.testbed.cgroups import Group
from lab.testbed.hosts import Host
from lab.testbed.link import Conditions, Link

EDGE, CLIENT = "10.99.0.1", "10.99.0.2"
FIRST_PORT = 8443
BACKEND = "backend"


class Stage:
    """One for a whole run; the line and the edges change."""

    def __init__(self, top: Group, folder: Path, closing: ExitStack) -> None:
        self._top = top
        self._folder = folder
        self._closing = closing
        self._edges: dict[tuple[str, str], Running] = {}
        self._certificate = certificate.make(folder)
        self._client = Host("client", CLIENT, top.child("client"), folder)
        self._link = Link(self._client, EDGE, top.child("link"), folder)
        # The host first: one of the line's devices is its link.
        closing.callback(self._link.remove)
        closing.callback(self._client.remove)
        self._backend, self._backend_child = sites.start_backend(self._place(BACKEND))
        closing.callback(self._backend_child.stop)
        self.browser = Browser(self._client, EDGE, pin(self._certificate), folder)
        closing.callback(self.browser.stop)

    def use(self, conditions: Conditions, congestion_control: str, seed: int) -> None:
        """From here on the line is like this."""
        self._link.use(conditions, congestion_control, seed)

    def edge(self, name: str, congestion_control: str) -> int:
        """The port of an edge whose QUIC uses this; it is started where it is not there, and runs to the end."""
        key = (name, congestion_control)
        if key not in self._edges:
            port = FIRST_PORT + len(self._edges)
            task = Task(
                (self._backend,), certificate=self._certificate, http3=True, quic_congestion_control=congestion_control
            )
            running = balancer(name).start(task, self._place(f"{name}-{congestion_control}", EDGE, port))
            self._closing.callback(running.child.stop)
            self._edges[key] = running
        return FIRST_PORT + list(self._edges).index(key)

    def _place(self, name: str, host: str = "127.0.0.1", port: int = 0) -> Site:
        folder = self._folder / name
        folder.mkdir()
        return Site(folder, partial(self._launch, name), host, port)

    def _launch(self, name: str, argv: Sequence[object], log: Path) -> Child:
        return Child(self._top.child(name).create().entering(argv), log)

    def udp_dropped(self) -> int:
        """Datagrams that had arrived at the client, and found no room at who was to read them."""
        names, values = (
            line.split()[1:]
            for line in Path(f"/proc/{self._client.pid}/net/snmp").read_text().splitlines()
            if line.startswith("Udp:")
        )
        return int(dict(zip(names, values, strict=True))["RcvbufErrors"])

    @contextmanager
    def without_udp(self) -> Iterator[None]:
        """Datagrams of the client get lost, and nobody is told."""
        rule = f"INPUT --in-interface {self._client.name} --protocol udp --jump DROP"
        hosts.run_on_node(["iptables", "--wait", "5", "--append", *rule.split()], "")
        try:
            yield
        finally:
            hosts.run_on_node(["iptables", "--wait", "5", "--delete", *rule.split()], "")

    def cpu_seconds(self) -> float:
        """Of everything that runs for the lab."""
        return self._top.cpu_seconds()

    def check(self) -> None:
        """Raises if something that has to run has ended."""
        self._link.check()
        for child in (self._backend_child, *(running.child for running in self._edges.values())):
            child.check()


@contextmanager
def stage(top: Group, folder: Path) -> Iterator[Stage]:
    """All of it but the edges; nothing is left afterwards."""
    with ExitStack() as closing:
        yield Stage(top, folder, closing)


def pin(certificate: Certificate) -> str:
    """By which a browser knows a certificate's key: SHA-256, in base64."""
    argv = ["openssl", "x509", "-in", str(certificate.chain), "-noout", "-pubkey"]
    key = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    body = "".join(line for line in key.splitlines() if not line.startswith("-"))
    return base64.b64encode(hashlib.sha256(base64.b64decode(body)).digest()).decode()
