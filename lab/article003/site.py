"""Site of one arm: a client, a switch, two nodes with a pod each, and flannel's VXLAN between the nodes.

Every arm has its own site, so that arms are measured in turn without being set up anew.

     client .10 ──┐              ┌── node-a .11 ── cni0 10.244.1.1 ── pod-a 10.244.1.2
                  switch 192.168.100.1
                                 └── node-b .12 ── cni0 10.244.2.1 ── pod-b 10.244.2.2
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.article003.services import ECHO_PORT, OTHER_VIPS, VIP
from lab.article003.whole_kernel import WholeKernel
from lab.child import Child, ChildFailed, wait_until
from lab.network import listens
from lab.paths import binary
from lab.testbed import hosts
from lab.testbed.cgroups import ControlGroup
from lab.testbed.hosts import Host
from lab.testbed.link import NO_METRICS_SAVE

SWITCH, CLIENT = "192.168.100.1", "192.168.100.10"
SEGMENT = "192.168.100.0/24"
POD_MTU = 1450
VNI, VXLAN_PORT = 1, 8472
NodeName = Literal["node-a", "node-b"]


@dataclass(frozen=True)
class NodePlan:
    """Addresses of a node and of its pod."""

    name: NodeName
    address: str
    mac: str
    pod_subnet: str
    gateway: str
    pod: str
    # Address of flannel's device, and of its Ethernet side.
    flannel: str
    flannel_mac: str


NODES = (
    NodePlan("node-a", "192.168.100.11", "02:00:00:00:0a:01", "10.244.1.0/24", "10.244.1.1", "10.244.1.2",
             "10.244.1.0", "02:00:00:00:0a:02"),
    NodePlan("node-b", "192.168.100.12", "02:00:00:00:0b:01", "10.244.2.0/24", "10.244.2.1", "10.244.2.2",
             "10.244.2.0", "02:00:00:00:0b:02"),
)  # fmt: skip
NODE_A, NODE_B = NODES
# The pod behind the Service is on the second node.
POD = NODE_B.pod

HostGroup = ControlGroup | WholeKernel

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"


class Site:
    """The hosts of one arm."""

    def __init__(self, name: str, top: HostGroup, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self._top = top
        self.hosts: list[Host] = []
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def _build(self) -> None:
        switch = self._host("switch", SWITCH)
        hosts.make_bridge(SWITCH, SEGMENT, switch)
        self.client = self._host("client", CLIENT)
        hosts.plug_in(self.client, SWITCH, switch)
        self.nodes = {plan.name: self._node(plan, switch) for plan in NODES}
        self.pods = {plan.name: self._pod(plan) for plan in NODES}
        for host in (self.client, *self.pods.values()):
            host.run(NO_METRICS_SAVE, "1")
            # Receivers of packets do not put them together again.
            host.run(["ethtool", "-K", "eth0", "gro", "off"], "")
        # Short connections use up ports faster than the kernel gives them back by default.
        set_ipv4(self.client, "ip_local_port_range", "1024 65535")
        set_ipv4(self.client, "tcp_tw_reuse", "1")
        for own, other in (NODES, NODES[::-1]):
            _connect_by_vxlan(self.nodes[own.name], own, other)
            # Replies of pods do not have to return by the node that the request came through.
            set_ipv4(self.nodes[own.name], "conf/*/rp_filter", "0")
        self.route(NODE_A.pod_subnet, "node-a")
        self._echo = self._start_echo()

    def _host(self, name: str, address: str) -> Host:
        host = Host(name, address, self._top.child(f"{self.name}-{name}"), self.folder)
        self.hosts.append(host)
        return host

    def _node(self, plan: NodePlan, switch: Host) -> Host:
        node = self._host(plan.name, plan.address)
        hosts.plug_in(node, SWITCH, switch)
        node.configure(f"link set eth0 address {plan.mac}")
        hosts.make_bridge(plan.gateway, plan.pod_subnet, node)
        return node

    def _pod(self, plan: NodePlan) -> Host:
        pod = self._host(f"pod{plan.name.removeprefix('node')}", plan.pod)
        hosts.plug_in(pod, plan.gateway, self.nodes[plan.name])
        pod.configure(f"link set eth0 mtu {POD_MTU}")
        self.nodes[plan.name].configure(f"link set {pod.name} mtu {POD_MTU}")
        return pod

    @property
    def pod(self) -> Host:
        """Returns the pod behind the Service."""
        return self.pods[NODE_B.name]

    def route(self, subnet: str, node: NodeName) -> None:
        """Makes the client send packets of a subnet to a node."""
        address = _plan(node).address
        self.client.configure(f"route replace {subnet} via {address} congctl {hosts.CONGESTION_CONTROL}")

    def announce(self, node: NodeName) -> None:
        """Makes the client send packets of virtual addresses to a node, as if the node had announced them."""
        self.client.configure(f"neighbour replace {VIP} lladdr {_plan(node).mac} nud permanent dev eth0")
        self.route(OTHER_VIPS, node)

    def set_segmentation_offload(self, on: bool) -> None:
        """Lets senders hand super-packets to the network, or packets of at most the MTU."""
        state = "on" if on else "off"
        for host in (self.client, *self.pods.values()):
            host.run(["ethtool", "-K", "eth0", "tso", state, "gso", state], "")

    def limit_nodes(self, mbit: float | None) -> None:
        """Limits what each node sends; None is no limit."""
        for node in self.nodes.values():
            if mbit is None:
                node.run(["tc", "qdisc", "delete", "dev", "eth0", "root"], "")
            else:
                rate = f"rate {mbit}mbit burst 128kb latency 50ms"
                node.run(["tc", "-batch", "-"], f"qdisc replace dev eth0 root tbf {rate}\n")

    def cpu_seconds(self) -> float:
        """Returns the CPU time of all processes of the site."""
        return sum(host.group.cpu_seconds() for host in self.hosts)

    def wait_for(self, address: str, port: int, child: Child | None = None, seconds: float = 180.0) -> None:
        """Waits until the client can open a connection."""
        argv = self.client.enter_command([sys.executable, "-c", CONNECT, address, port])
        wait_until(lambda: _succeeds(argv), child or self._echo, f"{self.name}: {address}:{port}", seconds)

    def start_when_ready(self, host: Host, argv: Sequence[object], port: int, log: str) -> Child:
        """Starts a server on a host, and waits until it listens."""
        server = host.start(argv, self.folder / log, piped=True)
        try:
            wait_until(lambda: listens(server.processes(), port), server, str(argv[0]))
        except BaseException:
            server.stop()
            raise
        return server

    def _start_echo(self) -> Child:
        """Starts the endpoint of short exchanges in the pod; it ends with its standard input."""
        argv = [binary("loadgen"), "--listen", f"{POD}:{ECHO_PORT}"]
        return self.start_when_ready(self.pod, argv, ECHO_PORT, "echo.log")

    def remove(self) -> None:
        """Kills everything on the hosts, which removes them."""
        for host in reversed(self.hosts):
            host.end()


def _plan(node: NodeName) -> NodePlan:
    return next(plan for plan in NODES if plan.name == node)


def _connect_by_vxlan(node: Host, own: NodePlan, other: NodePlan) -> None:
    """Creates flannel's device, with its entries for the other node."""
    node.configure(
        f"link add flannel.{VNI} address {own.flannel_mac} type vxlan id {VNI} local {own.address} dev eth0"
        f" nolearning dstport {VXLAN_PORT}",
        f"link set flannel.{VNI} mtu {POD_MTU} up",
        f"address add {own.flannel}/32 dev flannel.{VNI}",
        f"neighbour add {other.flannel} lladdr {other.flannel_mac} nud permanent dev flannel.{VNI}",
        f"route add {other.pod_subnet} via {other.flannel} dev flannel.{VNI} onlink",
    )
    node.run(["bridge", "-batch", "-"], f"fdb append {other.flannel_mac} dev flannel.{VNI} dst {other.address}\n")


def set_ipv4(host: Host, setting: str, value: str) -> None:
    """Sets a sysctl below net.ipv4; a pattern sets several."""
    # A sysctl path refers to the namespace of the process that opens it.
    host.run(["sh", "-c", f'read -r value; for file in /proc/sys/net/ipv4/{setting}; do echo "$value" >"$file"; done'],
             f"{value}\n")  # fmt: skip


def _succeeds(argv: Sequence[object]) -> bool:
    words = [str(word) for word in argv]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def check_output(argv: Sequence[object], seconds: float) -> str:
    """Returns the standard output of a command; raises an error if it fails or takes longer."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ChildFailed(f"`{' '.join(words[-8:])}` has not ended after {seconds:.0f} s") from error
    if done.returncode != 0:
        raise ChildFailed(f"`{' '.join(words[-8:])}` fails: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


