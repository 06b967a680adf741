"""Load balancer controller, which assigns addresses to Services of type LoadBalancer like a cloud or MetalLB.

    python -m tests.cluster.load_balancers

One node owns each address. With externalTrafficPolicy Local it must have a serving endpoint, which may be terminating.
kube-proxy does the rest.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from tests.cluster import certificates, network
from tests.cluster.api import Api, ApiError, ApiUnreachable, Object, follow
from tests.cluster.layout import BALANCED, NODES, REPOSITORY, Node

FAMILIES = {"IPv4": 0, "IPv6": 1}
SERVICE_OF_SLICE = "kubernetes.io/service-name"
RETRY_SECONDS = 0.5

# A namespace and a name.
Key = tuple[str, str]


@dataclass
class Allocation:
    """Addresses of a Service, and the node that owns them."""

    addresses: tuple[str, ...]
    node: Node | None = None


@dataclass
class ObservedObjects:
    """Objects of the API by key."""

    services: dict[Key, Object] = field(default_factory=dict)
    slices: dict[Key, Object] = field(default_factory=dict)
    nodes: dict[Key, Object] = field(default_factory=dict)

    def kinds(self) -> Mapping[str, dict[Key, Object]]:
        return {
            "/api/v1/services": self.services,
            "/apis/discovery.k8s.io/v1/endpointslices": self.slices,
            "/api/v1/nodes": self.nodes,
        }


class LoadBalancers:
    """Reconciliation loop, which runs at every change."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._observed = ObservedObjects()
        self._allocations: dict[Key, Allocation] = {}
        self._changed = threading.Event()
        self._free = [map(str, _host_addresses(pool)) for pool in BALANCED]

    def run(self) -> None:
        synced = [self._follow(path, objects) for path, objects in self._observed.kinds().items()]
        for event in synced:
            event.wait()
        while True:
            self._changed.wait()
            self._changed.clear()
            try:
                self._reconcile_all()
            except (ApiError, ApiUnreachable, subprocess.CalledProcessError) as error:
                print(f"retry in {RETRY_SECONDS} s: {error}", flush=True)
                threading.Timer(RETRY_SECONDS, self._changed.set).start()

    def _follow(self, path: str, objects: dict[Key, Object]) -> threading.Event:
        synced = threading.Event()

        def on_change(item: Object) -> None:
            objects[_key(item)] = item
            self._changed.set()

        def on_delete(item: Object) -> None:
            objects.pop(_key(item), None)
            self._changed.set()

        threading.Thread(target=follow, args=(self._api, path, on_change, on_delete, synced.set), daemon=True).start()
        return synced

    def _reconcile_all(self) -> None:
        services = dict(self._observed.services)
        wanted = {key for key, service in services.items() if _is_ours(service)}
        for key in self._allocations.keys() - wanted:
            allocation = self._allocations.pop(key)
            self._move_addresses(allocation, None)
        for key in wanted:
            self._reconcile(key, services[key])

    def _reconcile(self, key: Key, service: Object) -> None:
        if key not in self._allocations:
            self._allocations[key] = Allocation(self._allocate(service))
        allocation = self._allocations[key]
        nodes = self._candidates(key, service)
        best = next(iter(nodes), None)
        if allocation.node not in nodes and allocation.node != best:
            self._move_addresses(allocation, best)
        ingress = [{"ip": address, "ipMode": "VIP"} for address in allocation.addresses]
        if service.get("status", {}).get("loadBalancer", {}).get("ingress") != ingress:
            path = f"/api/v1/namespaces/{key[0]}/services/{key[1]}/status"
            self._api.patch(path, {"status": {"loadBalancer": {"ingress": ingress}}})

    def _allocate(self, service: Object) -> tuple[str, ...]:
        """Returns the addresses that the Service has from an earlier process, or new ones."""
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
        if ingress:
            return tuple(entry["ip"] for entry in ingress)
        taken = {address for allocation in self._allocations.values() for address in allocation.addresses}
        families = [FAMILIES[family] for family in service["spec"]["ipFamilies"]]
        return tuple(next(address for address in self._free[family] if address not in taken) for family in families)

    def _candidates(self, key: Key, service: Object) -> list[Node]:
        alive = [node for node in NODES if _is_ready(self._observed.nodes.get(("", node.name)))]
        if service["spec"].get("externalTrafficPolicy") != "Local":
            return alive
        slices = [item for item in self._observed.slices.values() if _service_of(item) == key]
        serving = {
            endpoint.get("nodeName")
            for item in slices
            for endpoint in item.get("endpoints") or []
            if endpoint["conditions"].get("serving")
        }
        return [node for node in alive if node.name in serving]

    def _move_addresses(self, allocation: Allocation, node: Node | None) -> None:
        """Moves addresses to a node, or to none."""
        if allocation.node is not None:
            for address in allocation.addresses:
                _run_on(allocation.node, "ip", "address", "delete", *_host_prefix(address), "dev", "eth0", check=False)
        allocation.node = node
        if node is not None:
            for address in allocation.addresses:
                _run_on(node, "ip", "address", "replace", *_host_prefix(address), "dev", "eth0")
            _run_on(node, sys.executable, "-m", "tests.cluster.announcing", "eth0", *allocation.addresses)
        print(f"{', '.join(allocation.addresses)}: {node.name if node else 'nowhere'}", flush=True)


def _host_addresses(pool: str) -> Iterator[object]:
    """Returns all addresses except the first."""
    hosts = ip_network(pool).hosts()
    next(hosts)
    return hosts


def _is_ours(service: Object) -> bool:
    spec = service["spec"]
    wanted = spec.get("type") == "LoadBalancer" and not spec.get("loadBalancerClass")
    return wanted and "deletionTimestamp" not in service["metadata"]


def _is_ready(node: Object | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions", [])
    return any(known["type"] == "Ready" and known["status"] == "True" for known in conditions)


def _service_of(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata["namespace"], metadata.get("labels", {}).get(SERVICE_OF_SLICE, "")


def _key(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _host_prefix(address: str) -> list[str]:
    """Returns an address with its full prefix, without duplicate address detection."""
    return [f"{address}/128", "nodad"] if ":" in address else [f"{address}/32"]


def _run_on(node: Node, *words: str, check: bool = True) -> None:
    subprocess.run([*network.netns_prefix(node.namespace), *words], cwd=REPOSITORY, check=check)


if __name__ == "__main__":
    LoadBalancers(Api(certificates.kubeconfig("admin"))).run()
