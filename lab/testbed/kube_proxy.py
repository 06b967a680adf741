"""The rules that kube-proxy writes in its iptables mode, for one Service's ports, and how it replaces them.

Names of chains are hashed as kube-proxy hashes them, so that what `iptables-save` shows on a cluster can be compared.
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
# What leads from the kernel's own chains to kube-proxy's: written once.
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
# What does not depend on any Service.
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

# What is not for a ClusterIP may be for a NodePort.
LAST = (
    '-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this'
    ' chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS'
)


@dataclass(frozen=True)
class ServicePort:
    """One port of a Service, with a ClusterIP and a NodePort."""

    # Namespace, name and port, as in default/app:http.
    name: str
    address: str
    port: int
    node_port: int
    # Of the pods.
    target_port: int
    # Who comes from elsewhere is masqueraded.
    cluster_subnet: str
    transport: Literal["tcp", "udp"] = "tcp"
    # Whether who comes by a NodePort is sent to pods of that node alone, and keeps its address, or to any.
    external_traffic_policy: Literal["Cluster", "Local"] = "Cluster"

    @property
    def match(self) -> str:
        """What a packet's protocol is matched with."""
        return f"-m {self.transport} -p {self.transport}"


# Runs a command where the rules are to be, with this input.
Runner = Callable[[Sequence[str], str], None]


class KubeProxy:
    """Writes the rules of a Service's ports into the namespace of this process, or into that of a runner."""

    def __init__(self, services: Sequence[ServicePort], run: Runner | None = None) -> None:
        self._services = services
        self._run = run or _run
        self._chains: frozenset[str] = frozenset()
        self._restore(_tables(JUMPS, stale=()))

    def set_endpoints(self, pods: Sequence[str], local: Sequence[str] | None = None) -> None:
        """Replaces all rules at once. Connections that exist keep the endpoint they have, and so do flows of UDP: of
        those, kube-proxy makes conntrack forget what leads to an endpoint that is no longer one, and nothing else.
        Those of the pods that are on this node are all, unless it is said.
        """
        local = pods if local is None else local
        chains = _chains(self._services, pods)
        self._restore(_tables(rules(self._services, pods, local), sorted(self._chains - chains)))
        self._chains = chains

    def _restore(self, text: str) -> None:
        self._run(["iptables-restore", "--wait", "5", "--noflush"], text)


def rules(
    services: Sequence[ServicePort], pods: Sequence[str], local: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """By table, the rules for these pods, by their addresses, in kube-proxy's order."""
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


def _external_rules(service: ServicePort, local: Sequence[str]) -> tuple[str, ...]:
    """What becomes of who comes by a NodePort."""
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
    """A draw among endpoints, each as likely as any other."""
    for number, endpoint in enumerate(endpoints):
        left = len(endpoints) - number
        # The last one takes what the others have left.
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
    """What iptables-restore reads. A chain that is declared is emptied and filled in one step."""
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
        raise ChildFailed(f"{argv[0]} refuses kube-proxy's rules: {done.stderr.strip()}")


def _chains(services: Sequence[ServicePort], pods: Sequence[str]) -> frozenset[str]:
    """The Service's own chains, of which one without endpoints has none."""
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
