"""kube-proxy's rules in nftables mode (Kubernetes 1.36) for Services of type LoadBalancer, whose endpoints are one pod.

Names of tables, chains and maps are kube-proxy's, so that the rules can be compared with `nft list table ip kube-proxy`
on a cluster.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence

from lab.article003.services import CLUSTER_SUBNET, Service

TABLE = "ip kube-proxy"
VERDICTS = "type ipv4_addr . inet_proto . inet_service : verdict ;"
PORT_VERDICTS = "type inet_proto . inet_service : verdict ;"
MASQUERADE = "mark set mark or 0x4000"
# Hooks with their types and priorities.
HOOKS = {
    "filter-prerouting-pre-dnat": "type filter hook prerouting priority -110 ;",
    "filter-output-pre-dnat": "type filter hook output priority -110 ;",
    "filter-forward": "type filter hook forward priority 0 ;",
    "filter-input": "type filter hook input priority 0 ;",
    "filter-output": "type filter hook output priority 0 ;",
    "nat-output": "type nat hook output priority -100 ;",
    "nat-postrouting": "type nat hook postrouting priority 100 ;",
    "nat-prerouting": "type nat hook prerouting priority -100 ;",
}
CHAINS = (
    *("cluster-ips-check", "firewall-check", "masquerading", "nodeport-endpoints-check", "reject-chain", "services"),
    "service-endpoints-check",
)
SETS = {
    "set cluster-ips": "type ipv4_addr ;",
    "set nodeport-ips": "type ipv4_addr ;",
    "set hairpin-connections": "type ipv4_addr . ipv4_addr . inet_proto . inet_service ;",
    "map firewall-ips": VERDICTS,
    "map no-endpoint-nodeports": PORT_VERDICTS,
    "map no-endpoint-services": VERDICTS,
    "map service-ips": VERDICTS,
    "map service-nodeports": PORT_VERDICTS,
}
RULES = (
    "cluster-ips-check ip daddr @cluster-ips reject",
    "filter-prerouting-pre-dnat ct state new jump firewall-check",
    "filter-forward ct state new jump service-endpoints-check",
    "filter-forward ct state new jump cluster-ips-check",
    "filter-input ct state new jump nodeport-endpoints-check",
    "filter-input ct state new jump service-endpoints-check",
    "filter-output ct state new jump service-endpoints-check",
    "filter-output-pre-dnat ct state new jump firewall-check",
    "filter-output ct state new jump cluster-ips-check",
    "firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips",
    "masquerading mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random",
    "masquerading ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections"
    " masquerade fully-random",
    "nat-output jump services",
    "nat-postrouting jump masquerading",
    "nat-prerouting jump services",
    "nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports",
    "reject-chain reject",
    f"services ip daddr @cluster-ips ip saddr != {CLUSTER_SUBNET} {MASQUERADE}",
    "services ip daddr . meta l4proto . th dport vmap @service-ips",
    "services ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports",
    "service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services",
)


def rules(services: Sequence[Service], pod: str, node: str) -> str:
    """Returns the input of `nft --file` that replaces the table on the node with this address."""
    lines = [f"add table {TABLE}", f"delete table {TABLE}", f"add table {TABLE}"]
    for name, kind in SETS.items():
        word, _, name = name.partition(" ")
        lines.append(f"add {word} {TABLE} {name} {{ {kind} }}")
    lines += [f"add chain {TABLE} {name}" for name in CHAINS]
    lines += [f"add chain {TABLE} {name} {{ {hook} }}" for name, hook in HOOKS.items()]
    lines += [f"add rule {TABLE} {rule}" for rule in RULES]
    lines.append(f"add element {TABLE} nodeport-ips {{ {node} }}")
    for service in services:
        lines += _service(service, pod)
    return "\n".join(lines) + "\n"


def _service(service: Service, pod: str) -> Iterator[str]:
    yield f"add element {TABLE} cluster-ips {{ {service.cluster_ip} }}"
    for number, port in enumerate(service.ports):
        name = _hashed(f"default/{service.name}/tcp/p{port}")
        yield f"add chain {TABLE} service-{name}"
        yield (
            f"add rule {TABLE} service-{name} meta l4proto tcp dnat ip addr . port to"
            f" numgen random mod 1 map {{ 0 : {pod} . {port} }}"
        )
        yield f"add chain {TABLE} external-{name}"
        yield f"add rule {TABLE} external-{name} {MASQUERADE}"
        yield f"add rule {TABLE} external-{name} goto service-{name}"
        for address, chain in ((service.cluster_ip, "service"), (service.vip, "external")):
            yield f"add element {TABLE} service-ips {{ {address} . tcp . {port} : goto {chain}-{name} }}"
        yield f"add element {TABLE} service-nodeports {{ tcp . {service.node_port + number} : goto external-{name} }}"
        yield f"add element {TABLE} hairpin-connections {{ {pod} . {pod} . tcp . {port} }}"


def _hashed(name: str) -> str:
    return f"{base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()[:8]}-{name}"
