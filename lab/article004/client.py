"""A client: a browser on a separate host, at the far end of a separate link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.article004.browser import Browser
from lab.testbed import hosts
from lab.testbed.cgroups import ControlGroup
from lab.testbed.hosts import Host
from lab.testbed.link import Link, LinkConditions


class Client:
    """One of the concurrent clients; its link conditions change."""

    def __init__(
        self, name: str, address: str, edge: str, pin: str, top: ControlGroup, folder: Path, exit_stack: ExitStack
    ) -> None:
        folder.mkdir()
        self._host = Host(name, address, top.child(name), folder)
        self._link = Link(self._host, edge, top.child(f"{name}-link"), folder)
        # Remove the host first, because one of the link's devices belongs to it.
        exit_stack.callback(self._link.remove)
        exit_stack.callback(self._host.remove)
        self.browser = Browser(self._host, edge, pin, folder)
        exit_stack.callback(self.browser.stop)

    def apply(self, conditions: LinkConditions, congestion_control: str, seed: int) -> None:
        """Applies new conditions to the link."""
        self._link.apply(conditions, congestion_control, seed)

    def udp_dropped(self) -> int:
        """Returns the number of received datagrams that were dropped because of a full receive buffer."""
        names, values = (
            line.split()[1:]
            for line in Path(f"/proc/{self._host.pid}/net/snmp").read_text().splitlines()
            if line.startswith("Udp:")
        )
        return int(dict(zip(names, values, strict=True))["RcvbufErrors"])

    @contextmanager
    def without_udp(self) -> Iterator[None]:
        """Drops datagrams of this client silently."""
        rule = f"INPUT --in-interface {self._host.name} --protocol udp --jump DROP"
        hosts.run_on_node(["iptables", "--wait", "5", "--append", *rule.split()], "")
        try:
            yield
        finally:
            hosts.run_on_node(["iptables", "--wait", "5", "--delete", *rule.split()], "")

    def check(self) -> None:
        """Raises if the link process has ended."""
        self._link.check()
