"""Services of type LoadBalancer: the measured one, and others that a node has besides."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

# Ports of the measured Service: iperf3's, and that of the endpoint of the load generator.
IPERF_PORT, ECHO_PORT = 5201, 8080
PORTS = (IPERF_PORT, ECHO_PORT)
# An address in the network of client and nodes, as MetalLB's layer-2 mode needs it.
VIP = "192.168.100.100"
CLUSTER_IP = "10.96.0.100"
# Ranges of the other Services: the one for benchmarks, and a part of that of ClusterIPs.
OTHER_VIPS = "198.18.0.0/15"
OTHER_CLUSTER_IPS = "10.97.0.0/16"
CLUSTER_SUBNET = "10.244.0.0/16"
FIRST_NODE_PORT = 30000


@dataclass(frozen=True)
class Service:
    """A Service, all of whose endpoints are the measured pod."""

    name: str
    cluster_ip: str
    vip: str
    ports: tuple[int, ...]
    # Of the first port; the others follow.
    node_port: int


def services(count: int) -> list[Service]:
    """Returns this many Services. The measured one has as many before it as after it, as the mean one has."""
    others = [_other(number) for number in range(count - 1)]
    middle = len(others) // 2
    return [*others[:middle], Service("measured", CLUSTER_IP, VIP, PORTS, FIRST_NODE_PORT), *others[middle:]]


def _other(number: int) -> Service:
    cluster_ip = ipaddress.ip_network(OTHER_CLUSTER_IPS)[number + 1]
    vip = ipaddress.ip_network(OTHER_VIPS)[number + 1]
    # The usual range has 2,768 NodePorts, which does not suffice for 10,000.
    return Service(f"other-{number}", str(cluster_ip), str(vip), (ECHO_PORT,), FIRST_NODE_PORT + len(PORTS) + number)
