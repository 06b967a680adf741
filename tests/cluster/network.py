"""Network of the cluster: a namespace for bridge and control plane, one for each node, a link to the machine.

The namespaces have names, so that tests can enter them. Every link has one end in one of them and vanishes with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from ipaddress import ip_network
from pathlib import Path

from lab.network import CONGESTION_CONTROL
from tests.cluster.layout import (
    API_SERVER,
    CONTROL_PLANE_NAMESPACE,
    MACHINE,
    MACHINE_LINK,
    NAME,
    NETWORK,
    NODES,
    POOL,
    SERVICES,
    SPARE_NODES,
    Node,
)

BRIDGE = "nodes"
BRIDGE_ADDRESSES = (API_SERVER, "fd00:10:200::1")
# The machine's default may be bbr, whose pacing costs CPU. A namespace cannot set another one, but a route can.
CUBIC = f"congctl {CONGESTION_CONTROL}"
# Packets between pods are routed by their node, packets between nodes cross the bridge; a packet may leave by the link
# that it arrived on. Duplicate address detection would delay IPv6 addresses by a second.
SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
}


class NetworkError(Exception):
    """A setup command of the network failed; the message has its output."""


def make() -> None:
    _make_control_plane()
    _link_machine()
    for node in NODES:
        add_node(node)


def add_node(node: Node) -> None:
    """Creates the namespace of a node, and routes between it and all others."""
    others = [other for other in (*NODES, *SPARE_NODES) if other != node and other.namespace_file.exists()]
    _make_node(node)
    _ip_in(node.namespace, *_routes_to(others))
    for namespace in (CONTROL_PLANE_NAMESPACE, *(other.namespace for other in others)):
        _ip_in(namespace, *_routes_to([node]))
    _ip(*_routes_to([node]))


def remove_node(node: Node) -> None:
    """Removes the namespace of a node; routes to it stay, and serve its successor."""
    # The kernel removes a namespace in the background, and this end of its link with it.
    _ip_in(CONTROL_PLANE_NAMESPACE, f"link delete {node.name}")
    _run(["ip", "netns", "delete", node.namespace])


def remove() -> None:
    """Removes the network of a cluster, also an incomplete one."""
    # The kernel removes a namespace and this end of its link in the background, too late for an immediate check or a
    # new cluster.
    subprocess.run(["ip", "link", "delete", MACHINE_LINK], capture_output=True, check=False)
    for path in sorted(Path("/run/netns").glob(f"{NAME}-*")):
        subprocess.run(["ip", "netns", "delete", path.name], check=True)


def exists() -> bool:
    return any(Path("/run/netns").glob(f"{NAME}-*"))


def disconnect_node(node: Node) -> None:
    """Disconnects a node from the network."""
    _ip_in(CONTROL_PLANE_NAMESPACE, f"link set {node.name} down")


def connect_node(node: Node) -> None:
    """Connects a node with only its own address, as after a reboot."""
    free = (f"address flush dev eth0 to {addresses}" for addresses in POOL)
    _ip_in(node.namespace, *free)
    _ip_in(CONTROL_PLANE_NAMESPACE, f"link set {node.name} up")


def netns_prefix(namespace: str) -> list[str]:
    """Returns the command prefix that enters a namespace. `ip netns exec` would hide the control groups."""
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


def _make_control_plane() -> None:
    _make_namespace(CONTROL_PLANE_NAMESPACE)
    _ip_in(
        CONTROL_PLANE_NAMESPACE,
        # A fixed address: a bridge without one takes that of a port, and changes with the ports.
        f"link add {BRIDGE} address 0a:58:0a:c8:00:01 type bridge",
        *_addresses(BRIDGE_ADDRESSES, BRIDGE),
        f"link set {BRIDGE} up",
        *_network_routes(BRIDGE_ADDRESSES, BRIDGE),
    )
    # Frames between nodes bypass the netfilter of this namespace.
    _write_settings(
        CONTROL_PLANE_NAMESPACE, {"net/bridge/bridge-nf-call-iptables": "0", "net/bridge/bridge-nf-call-ip6tables": "0"}
    )


def _make_node(node: Node) -> None:
    _make_namespace(node.namespace)
    _plug_in(node.namespace, node.name, "eth0")
    _ip_in(
        node.namespace,
        *_addresses(node.addresses, "eth0"),
        "link set eth0 up",
        *_network_routes(node.addresses, "eth0"),
        # A dummy route: a packet from the node to a Service needs a route before its destination is rewritten.
        *(f"route replace default via {address} {CUBIC}" for address in BRIDGE_ADDRESSES),
    )


def _link_machine() -> None:
    """Connects the machine, so that its programs reach the API server, nodes, pods, Services and Gateways."""
    _ip_in(
        CONTROL_PLANE_NAMESPACE,
        f"link add machine type veth peer name {MACHINE_LINK} netns {os.getpid()}",
        f"link set machine master {BRIDGE}",
        "link set machine up",
    )
    first = NODES[0].addresses
    services = (f"route replace {net} via {via} {CUBIC}" for net, via in zip(SERVICES, first, strict=True))
    _ip(
        *_addresses(MACHINE, MACHINE_LINK),
        f"link set {MACHINE_LINK} up",
        *_network_routes(MACHINE, MACHINE_LINK),
        *services,
    )


def _make_namespace(name: str) -> None:
    _run(["ip", "netns", "add", name])
    _write_settings(name, SETTINGS)
    _ip_in(name, "link set lo up")


def _plug_in(namespace: str, port: str, link: str) -> None:
    _ip_in(
        CONTROL_PLANE_NAMESPACE,
        f"link add {port} type veth peer name {link} netns {namespace}",
        f"link set {port} master {BRIDGE}",
        f"link set {port} up",
    )


def _addresses(addresses: Iterable[str], link: str) -> list[str]:
    lengths = [ip_network(net).prefixlen for net in NETWORK]
    # Routes of the network itself are added explicitly, with their options.
    options = (" noprefixroute", " noprefixroute nodad")
    return [
        f"address add {address}/{length} dev {link}{option}"
        for address, length, option in zip(addresses, lengths, options, strict=True)
    ]


def _network_routes(addresses: Iterable[str], link: str) -> list[str]:
    """Returns the routes to the nodes' network itself."""
    return [
        f"route replace {net} dev {link} src {address} {CUBIC}" for net, address in zip(NETWORK, addresses, strict=True)
    ]


def _routes_to(nodes: Iterable[Node]) -> list[str]:
    """Returns the routes to the pods of nodes."""
    return [
        f"route replace {pods} via {address} {CUBIC}"
        for node in nodes
        for pods, address in zip(node.pods, node.addresses, strict=True)
    ]


def _write_settings(namespace: str, settings: dict[str, str]) -> None:
    """Writes sysctls in a namespace: the opener's namespace determines their scope. A kernel may lack some of them."""
    script = 'while [ $# -gt 0 ]; do [ ! -e "/proc/sys/$1" ] || echo "$2" >"/proc/sys/$1"; shift 2; done'
    words = [word for setting in settings.items() for word in setting]
    _run([*netns_prefix(namespace), "sh", "-c", script, "set", *words])


def _ip_in(namespace: str, *commands: str) -> None:
    _run(["ip", "-netns", namespace, "-batch", "-"], "\n".join(commands) + "\n")


def _ip(*commands: str) -> None:
    _run(["ip", "-batch", "-"], "\n".join(commands) + "\n")


def _run(argv: list[str], text: str = "") -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetworkError(f"`{' '.join(argv)}` failed to set up the cluster's network: {done.stderr.strip()}")
