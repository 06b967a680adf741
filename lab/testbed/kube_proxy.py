"""kube-proxy's rules in iptables mode for the ports of Services with the same pods, and their replacement.

Chain names have kube-proxy's hashes, so that the rules can be compared with the output of `iptables-save` on a cluster.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lab.child import ChildFailed

CHAINS = {
    "filter": ("KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS", "KUBE-SERVICES"),
    "nat": ("KUBE-MARK-MASQ", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-SERVICES"),
}
NEW = "-m conntrack --ctstate NEW"
PORTALS = '-m comment --comment "kubernetes service portals"'
VISIBLE = '-m comment --comment "kubernetes externally-visible service portals"'
# Jumps from the kernel's own chains to kube-proxy's, written once.
JUMPS = {
    "filter": (
        f"-A INPUT {NEW} {VISIBLE} -j KUBE-EXTERNAL-SERVICES",
        f"-A FORWARD {NEW} {PORTALS} -j KUBE-SERVICES",
        f"-A FORWARD {NEW} {VISIBLE} -j KUBE-EXTERNAL-SERVICES",
        '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
        f"-A OUTPUT {NEW} {PORTALS} -j KUBE-SERVICES",
    ),
    "nat": (
        f"-A PREROUTING {PORTALS} -j KUBE-SERVICES",
        f"-A OUTPUT {PORTALS} -j KUBE-SERVICES",
        '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
    ),
}
# Rules that do not depend on a Service.
ALWAYS = {
    "filter": (
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT',
        '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule"'
        " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    ),
    "nat": (
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
        '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT"'
        " -j MASQUERADE --random-fully",
        "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
    ),
}

# Packets that match no ClusterIP may match a NodePort.
LAST = (
    '-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this'
    ' chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS'
)


@dataclass(frozen=True)
class ServicePort:
    """One port of a Service, with a ClusterIP and a NodePort."""

    # Namespace, name and port, such as default/app:http.
    name: str
    address: str
    port: int
    node_port: int
    # Port of the pods.
    target_port: int
    # Traffic from other sources is masqueraded.
    cluster_subnet: str
    transport: Literal["tcp", "udp"] = "tcp"
    # Local sends NodePort traffic to pods of its node and keeps the client's address; Cluster sends it to any pod.
    external_traffic_policy: Literal["Cluster", "Local"] = "Cluster"
    # Address of a Service of type LoadBalancer.
    load_balancer_address: str | None = None

    @property
    def match(self) -> str:
        """Match of a packet's protocol."""
        return f"-m {self.transport} -p {self.transport}"


# Runs a command with an input in the namespace of the rules.
Runner = Callable[[Sequence[str], str], None]


class KubeProxy:
    """Writer of a Service's rules into the namespace of this process, or that of a runner."""

    def __init__(self, services: Sequence[ServicePort], run: Runner | None = None) -> None:
        self._services = services
        self._run = run or _run
        self._chains: frozenset[str] = frozenset()
        self._restore(_tables(JUMPS, stale=()))

    def set_endpoints(self, pods: Sequence[str], local: Sequence[str] | None = None) -> None:
        """Replaces all rules at once. Existing connections and UDP flows keep their endpoint, except that kube-proxy
        deletes conntrack entries of UDP flows to removed endpoints. `local` are the pods on this node, by default all.
        """
        local = pods if local is None else local
        chains = _chains(self._services, pods)
        self._restore(_tables(rules(self._services, pods, local), sorted(self._chains - chains)))
        self._chains = chains

    def set_services(self, services: Sequence[ServicePort], pods: Sequence[str]) -> None:
        """Replaces the Services too."""
        self._services = services
        self.set_endpoints(pods)

    def _restore(self, text: str) -> None:
        self._run(["iptables-restore", "--wait", "5", "--noflush"], text)


def rules(
    services: Sequence[ServicePort], pods: Sequence[str], local: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Returns the rules for these pod addresses by table, in kube-proxy's order."""
    if not pods:
        refused = tuple(rule for service in services for rule in _reject_rules(service))
        return {"filter": (*refused, *ALWAYS["filter"]), "nat": ALWAYS["nat"]}
    near = pods if local is None else local
    dispatched = tuple(rule for service in services for rule in _dispatch(service, pods, near))
    return {"filter": ALWAYS["filter"], "nat": (*ALWAYS["nat"], *dispatched, LAST)}


def _endpoints(service: ServicePort, pods: Sequence[str]) -> list[str]:
    return [f"{pod}:{service.target_port}" for pod in pods]


def _dispatch(service: ServicePort, pods: Sequence[str], local: Sequence[str]) -> tuple[str, ...]:
    chain, external = _service_chain(service, "SVC"), _service_chain(service, "EXT")
    name = f"-m comment --comment {service.name}"
    address = f'-m comment --comment "{service.name} cluster IP" {service.match} -d {service.address}'
    written = [
        f"-A KUBE-SERVICES {address} --dport {service.port} -j {chain}",
        *_load_balancer_rules(service),
        f"-A KUBE-NODEPORTS {name} {service.match} --dport {service.node_port} -j {external}",
        *_external_rules(service, local),
        f"-A {chain} {address} --dport {service.port} ! -s {service.cluster_subnet} -j KUBE-MARK-MASQ",
        *_random_choice_rules(service, chain, _endpoints(service, pods)),
    ]
    for endpoint in _endpoints(service, pods):
        target = _endpoint_chain(service, endpoint)
        written.append(f"-A {target} {name} -s {endpoint.partition(':')[0]} -j KUBE-MARK-MASQ")
        written.append(f"-A {target} {name} {service.match} -j DNAT --to-destination {endpoint}")
    return tuple(written)


def _load_balancer_rules(service: ServicePort) -> tuple[str, ...]:
    """Returns the rule for traffic to the address of the load balancer, if there is one."""
    if not service.load_balancer_address:
        return ()
    match = f'-m comment --comment "{service.name} loadbalancer IP" {service.match} -d {service.load_balancer_address}'
    return (f"-A KUBE-SERVICES {match} --dport {service.port} -j {_service_chain(service, 'EXT')}",)


def _external_rules(service: ServicePort, local: Sequence[str]) -> tuple[str, ...]:
    """Returns the rules for traffic from outside: to the NodePort, and to the address of the load balancer."""
    chain, external = _service_chain(service, "SVC"), _service_chain(service, "EXT")
    if service.external_traffic_policy == "Cluster":
        masquerade = f'-m comment --comment "masquerade traffic for {service.name} external destinations"'
        return (f"-A {external} {masquerade} -j KUBE-MARK-MASQ", f"-A {external} -j {chain}")
    near = _service_chain(service, "SVL")
    pods = f'-m comment --comment "pod traffic for {service.name} external destinations"'
    here = "-m addrtype --src-type LOCAL"
    return (
        f"-A {external} {pods} -s {service.cluster_subnet} -j {chain}",
        f'-A {external} -m comment --comment "masquerade LOCAL traffic for {service.name} external destinations"'
        f" {here} -j KUBE-MARK-MASQ",
        f'-A {external} -m comment --comment "route LOCAL traffic for {service.name} external destinations"'
        f" {here} -j {chain}",
        f"-A {external} -j {near}",
        *_random_choice_rules(service, near, _endpoints(service, local)),
    )


def _random_choice_rules(service: ServicePort, chain: str, endpoints: Sequence[str]) -> Iterator[str]:
    """Returns a uniform random choice among the endpoints."""
    for number, endpoint in enumerate(endpoints):
        left = len(endpoints) - number
        # The last rule takes the remaining packets.
        chance = f" -m statistic --mode random --probability {1 / left:.10f}" if left > 1 else ""
        target = _endpoint_chain(service, endpoint)
        yield f'-A {chain} -m comment --comment "{service.name} -> {endpoint}"{chance} -j {target}'


def _reject_rules(service: ServicePort) -> tuple[str, ...]:
    comment = f'-m comment --comment "{service.name} has no endpoints"'
    return (
        f"-A KUBE-SERVICES {comment} {service.match} -d {service.address} --dport {service.port} -j REJECT",
        f"-A KUBE-EXTERNAL-SERVICES {comment} -m addrtype --dst-type LOCAL {service.match}"
        f" --dport {service.node_port} -j REJECT",
    )


def _tables(rules_by_table: dict[str, tuple[str, ...]], stale: Sequence[str]) -> str:
    """Returns the input of iptables-restore. A declared chain is emptied and filled atomically."""
    lines = []
    for table, written in rules_by_table.items():
        removed = stale if table == "nat" else ()
        own = {rule.split()[1] for rule in written if rule.startswith("-A KUBE-")}
        chains = sorted({*CHAINS[table], *own, *removed})
        lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains), *written]
        lines += [*(f"-X {chain}" for chain in removed), "COMMIT"]
    return "\n".join(lines) + "\n"


def _run(argv: Sequence[str], text: str) -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"{argv[0]} rejected kube-proxy's rules: {done.stderr.strip()}")


def _chains(services: Sequence[ServicePort], pods: Sequence[str]) -> frozenset[str]:
    """Returns the Service's own chains; a port without endpoints has none."""
    if not pods:
        return frozenset()
    own = {_service_chain(service, kind) for service in services for kind in _kinds(service)}
    return frozenset(own | {_endpoint_chain(service, one) for service in services for one in _endpoints(service, pods)})


def _kinds(service: ServicePort) -> tuple[str, ...]:
    return ("SVC", "EXT") if service.external_traffic_policy == "Cluster" else ("SVC", "EXT", "SVL")


def _service_chain(service: ServicePort, kind: str) -> str:
    return f"KUBE-{kind}-{_hash(f'{service.name}{service.transport}')}"


def _endpoint_chain(service: ServicePort, endpoint: str) -> str:
    return f"KUBE-SEP-{_hash(f'{service.name}{service.transport}{endpoint}')}"


def _hash(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]
