"""A second node with its own pods and kube-proxy rules, and an external client.

Both nodes have each Service's NodePort. External traffic uses one address for both nodes, as with a cloud's load
balancer, which chooses a random node for each connection and does not see requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.child import Child
from lab.testbed import hosts
from lab.testbed.cgroups import ControlGroup
from lab.testbed.hosts import Host
from lab.testbed.kube_proxy import KubeProxy, ServicePort

NAME = "node-2"
ADDRESS = "10.42.2.2"
FIRST_NODE = "10.42.2.1"
LINK = "10.42.2.0/24"
IN_POD_SUBNET = "10.42.3.1"
POD_SUBNET = "10.42.3.0/24"
# From the ranges for documentation, which are not routed.
OUTSIDE = "192.0.2.2"
FIRST_NODE_OUTSIDE = "192.0.2.1"
OUTSIDE_SUBNET = "192.0.2.0/24"
BOTH_NODES = "203.0.113.1"


class SecondNode:
    """A forwarding namespace, which reaches everything else through the first node."""

    def __init__(self, top: ControlGroup, folder: Path, services: Sequence[ServicePort]) -> None:
        self.host = Host(NAME, ADDRESS, top.child(NAME), folder)
        hosts.connect(self.host, FIRST_NODE, LINK)
        hosts.make_bridge(IN_POD_SUBNET, POD_SUBNET, self.host)
        hosts.route(POD_SUBNET, ADDRESS)
        self.kube_proxy = KubeProxy(services, self.host.run)

    def plug_in(self, host: Host) -> None:
        hosts.plug_in(host, IN_POD_SUBNET, self.host)

    def remove(self) -> None:
        self.host.remove()


class ExternalClient:
    """An external client, with a connection-level load balancer before the nodes."""

    def __init__(self, top: ControlGroup, folder: Path) -> None:
        self._host = Host("outside", OUTSIDE, top.child("outside"), folder)
        self._folder = folder
        hosts.connect(self._host, FIRST_NODE_OUTSIDE, OUTSIDE_SUBNET)
        self._host.run(["iptables-restore", "--wait", "5"], _random_node_rules((FIRST_NODE_OUTSIDE, ADDRESS)))

    def start(self, argv: Sequence[object], log: str) -> Child:
        return self._host.start(argv, self._folder / log)

    def remove(self) -> None:
        self._host.remove()


def _random_node_rules(nodes: Sequence[str]) -> str:
    """Returns rules that choose each node with the same probability."""
    lines = []
    for number, node in enumerate(nodes):
        left = len(nodes) - number
        chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
        lines.append(f"-A OUTPUT -d {BOTH_NODES} -p tcp {chance}-j DNAT --to-destination {node}")
    return "\n".join(["*nat", *lines, "COMMIT"]) + "\n"
