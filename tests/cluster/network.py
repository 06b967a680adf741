"""The cluster's network: a namespace with the bridge and the control plane, one for each node, a link to the machine.

The namespaces have names, so that tests can enter them. Every link has one end in one of them and goes with it.
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
    Node,
)

BRIDGE = "nodes"
BRIDGE_ADDRESSES = (API_SERVER, "fd00:10:200::1")
# A machine's default may be bbr, whose pacing costs CPU, and a namespace may not choose another one. A route may.
CUBIC = f"congctl {CONGESTION_CONTROL}"
# Packets between pods pass through their node's routing, those between nodes over the bridge; what comes in by one link
# may leave by it. Duplicate detection would keep IPv6 addresses unusable for a second.
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
    """A command that sets up the network failed; the message has what it said."""


def make() -> None:
    _make_control_plane()
    for node in NODES:
        _make_node(node)
    for node in NODES:
        _ip_in(node.namespace, *_routes_to(other for other in NODES if other != node))
    _ip_in(CONTROL_PLANE_NAMESPACE, *_routes_to(NODES))
    _link_machine()


def remove() -> None:
    """All there is of any cluster, whole or not."""
    # A namespace goes in the background, and this end of its link with it: a moment too late for whoever looks, or
    # makes the next one.
    subprocess.run(["ip", "link", "delete", MACHINE_LINK], capture_output=True, check=False)
    for path in sorted(Path("/run/netns").glob(f"{NAME}-*")):
        subprocess.run(["ip", "netns", "delete", path.name], check=True)


def exists() -> bool:
    return any(Path("/run/netns").glob(f"{NAME}-*"))


def disconnect_node(node: Node) -> None:
    """Nobody hears it any more."""
    _ip_in(CONTROL_PLANE_NAMESPACE, f"link set {node.name} down")


def connect_node(node: Node) -> None:
    """With no address but its own, as it is after it was switched on."""
    free = (f"address flush dev eth0 to {addresses}" for addresses in POOL)
    _ip_in(node.namespace, *free)
    _ip_in(CONTROL_PLANE_NAMESPACE, f"link set {node.name} up")


def netns_prefix(namespace: str) -> list[str]:
    """How a command begins that runs in a namespace. `ip netns exec` would hide the control groups from it."""
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


def _make_control_plane() -> None:
    _make_namespace(CONTROL_PLANE_NAMESPACE)
    _ip_in(
        CONTROL_PLANE_NAMESPACE,
        # An address of its own: a bridge without one takes that of its ports, and changes with them.
        f"link add {BRIDGE} address 0a:58:0a:c8:00:01 type bridge",
        *_addresses(BRIDGE_ADDRESSES, BRIDGE),
        f"link set {BRIDGE} up",
        *_network_routes(BRIDGE_ADDRESSES, BRIDGE),
    )
    # Frames between nodes are nobody's business on the way.
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
        # Nowhere. But what goes to a Service from the node itself needs a way before it is given another destination.
        *(f"route replace default via {address} {CUBIC}" for address in BRIDGE_ADDRESSES),
    )


def _link_machine() -> None:
    """So that programs of the machine reach the API server, nodes, pods, Services and a Gateway's addresses."""
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
        *_routes_to(NODES),
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
    # The ways on the network itself are made with what they need.
    options = (" noprefixroute", " noprefixroute nodad")
    return [
        f"address add {address}/{length} dev {link}{option}"
        for address, length, option in zip(addresses, lengths, options, strict=True)
    ]


def _network_routes(addresses: Iterable[str], link: str) -> list[str]:
    """To what is on the nodes' network itself."""
    return [
        f"route replace {net} dev {link} src {address} {CUBIC}" for net, address in zip(NETWORK, addresses, strict=True)
    ]


def _routes_to(nodes: Iterable[Node]) -> list[str]:
    """The ways to the pods of nodes."""
    return [
        f"route replace {pods} via {address} {CUBIC}"
        for node in nodes
        for pods, address in zip(node.pods, node.addresses, strict=True)
    ]


def _write_settings(namespace: str, settings: dict[str, str]) -> None:
    """What lies in /proc/sys/net is of the namespace of whoever opens it. A kernel may lack some of it."""
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
        raise NetworkError(f"`{' '.join(argv)}` refuses to set up the cluster's network: {done.stderr.strip()}")
