"""Data paths from the client to the pod: nothing, kube-proxy's rules behind MetalLB's address, and Sheave's programs.

MetalLB has no data path of its own: in its layer-2 mode one node announces the address, and kube-proxy does the rest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Protocol

from lab.article003 import manifests, nftables
from lab.article003.ipvs import IpvsRules
from lab.article003.services import CLUSTER_SUBNET, ECHO_PORT, VIP, Service
from lab.article003.site import NODES, POD, Site
from lab.balancers import replace_file
from lab.child import Child
from lab.paths import binary
from lab.testbed.kube_proxy import KubeProxy, ServicePort

NO_L4 = "this binary has no l4"


class DataPath(Protocol):
    """Way of packets to the pod."""

    # Address that clients use.
    target: str

    def set_services(self, services: Sequence[Service]) -> None:
        """Replaces the Services; returns once the new ones are in force."""

    def stop(self) -> None: ...


class DirectRoute:
    """No balancer: the client knows the pod's address, and a node that leads there."""

    target = POD

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        site.route(NODES[1].pod_subnet, settings["node"])

    def set_services(self, services: Sequence[Service]) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""


class IptablesRules:
    """kube-proxy in iptables mode on both nodes."""

    target = VIP

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        site.announce(settings["node"])
        self._proxies = [KubeProxy((), node.run) for node in site.nodes.values()]

    def set_services(self, services: Sequence[Service]) -> None:
        ports = [port for service in services for port in service_ports(service)]
        for proxy in self._proxies:
            proxy.set_services(ports, (POD,))

    def stop(self) -> None:
        """Does nothing: the rules end with their nodes."""


class NftablesRules:
    """kube-proxy in nftables mode on both nodes."""

    target = VIP

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        site.announce(settings["node"])
        self._site = site

    def set_services(self, services: Sequence[Service]) -> None:
        for plan in NODES:
            self._site.nodes[plan.name].run(["nft", "--file", "-"], nftables.rules(services, POD, plan.address))

    def stop(self) -> None:
        """Does nothing: the rules end with their nodes."""


class SheaveAgents:
    """`sheave l4` on both nodes, with the objects in a watched folder."""

    target = VIP

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        site.announce(settings["node"])
        self._site = site
        self._mode = settings["mode"]
        self._objects = site.folder / "objects"
        self._objects.mkdir()
        self._agents: list[Child] = []

    def set_services(self, services: Sequence[Service]) -> None:
        replace_file(self._objects / "services.yaml", manifests.documents(services))
        if not self._agents:
            self._agents = [self._start(name) for name in self._site.nodes]
        for service in (services[0], services[-1], *(each for each in services if each.vip == VIP)):
            self._site.wait_for(service.vip, ECHO_PORT, self._agents[0])

    def _start(self, name: str) -> Child:
        # The BPF file system with the pinned maps is in a mount namespace of its own, and ends with the process.
        argv = ["unshare", "--mount", "--", binary("sheave"), "l4", "--pin-folder", self._site.folder / f"pins-{name}"]
        argv += ["--config", self._objects, "--node", name, "--mode", self._mode, "--uplink", "eth0", "--admin", "off"]
        return self._site.nodes[name].start(argv, self._site.folder / f"sheave-{name}.log")

    def stop(self) -> None:
        with ExitStack() as stack:
            for agent in self._agents:
                stack.callback(agent.stop)


DATA_PATHS = {
    "direct": DirectRoute,
    "iptables": IptablesRules,
    "nftables": NftablesRules,
    "ipvs": IpvsRules,
    "sheave": SheaveAgents,
}


def obstacle(balancer: str) -> str | None:
    """Returns the reason why an arm of this balancer cannot run here, or None."""
    return NO_L4 if balancer == "sheave" and not _has_l4() else None


@cache
def _has_l4() -> bool:
    done = subprocess.run([binary("sheave"), "l4", "--help"], capture_output=True, check=False)
    return done.returncode == 0


def service_ports(service: Service) -> list[ServicePort]:
    """Returns the ports of a Service as kube-proxy sees them."""
    return [
        ServicePort(
            f"default/{service.name}:p{port}",
            service.cluster_ip,
            port,
            service.node_port + number,
            port,
            cluster_subnet=CLUSTER_SUBNET,
            load_balancer_address=service.vip,
        )
        for number, port in enumerate(service.ports)
    ]
