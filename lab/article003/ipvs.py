"""kube-proxy's IPVS mode on both nodes, which the article had behind MetalLB.

Addresses of Services are on a dummy interface, IPVS forwards to the pod, and iptables masquerades. kube-proxy puts the
addresses into an ipset; here each has a rule of its own, which for one Service is the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.article003.services import VIP, Service
from lab.article003.site import POD, Site, set_ipv4

DEVICE = "kube-ipvs0"
MODULES = ("ip_vs", "ip_vs_rr", "xt_ipvs", "dummy")
# As kube-proxy sets them, with strictARP, which MetalLB demands.
SETTINGS = {
    "vs/conntrack": "1",
    "vs/conn_reuse_mode": "0",
    "vs/expire_nodest_conn": "1",
    "vs/expire_quiescent_template": "1",
    "conf/all/arp_ignore": "1",
    "conf/all/arp_announce": "2",
}


class IpvsRules:
    """IPVS and its iptables rules on both nodes."""

    target = VIP

    def __init__(self, site: Site, settings: Mapping[str, Any]) -> None:
        site.announce(settings["node"])
        self._site = site

    def set_services(self, services: Sequence[Service]) -> None:
        for node in self._site.nodes.values():
            for name, value in SETTINGS.items():
                set_ipv4(node, name, value)
            node.configure(*addresses(services))
            node.run(["ipvsadm", "--restore"], virtual_servers(services))
            node.run(["iptables-restore", "--wait", "5"], masquerading(services))

    def stop(self) -> None:
        """Does nothing: IPVS ends with the nodes."""


def addresses(services: Sequence[Service]) -> list[str]:
    """Returns commands of `ip`."""
    bound = [address for service in services for address in (service.cluster_ip, service.vip)]
    return [f"link add {DEVICE} type dummy", *(f"address add {address}/32 dev {DEVICE}" for address in bound)]


def virtual_servers(services: Sequence[Service]) -> str:
    """Returns the input of `ipvsadm --restore`."""
    lines = []
    for service in services:
        for address in (service.cluster_ip, service.vip):
            for port in service.ports:
                lines.append(f"-A -t {address}:{port} -s rr")
                lines.append(f"-a -t {address}:{port} -r {POD}:{port} -m -w 1")
    return "\n".join(lines) + "\n"


def masquerading(services: Sequence[Service]) -> str:
    """Returns the input of `iptables-restore`."""
    chains = ("KUBE-SERVICES", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-POSTROUTING")
    comment = '-m comment --comment "Kubernetes service lb portal"'
    external = [
        f"-A KUBE-SERVICES {comment} -d {service.vip}/32 -p tcp -m tcp --dport {port} -j KUBE-LOAD-BALANCER"
        for service in services
        for port in service.ports
    ]
    lines = [
        *("*nat", *(f":{chain} - [0:0]" for chain in chains)),
        '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
        '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
        '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
        *external,
        "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ",
        "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
        '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT"'
        " -j MASQUERADE --random-fully",
        "COMMIT",
    ]
    return "\n".join(lines) + "\n"
