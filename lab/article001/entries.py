"""Entry points of the pods: kube-proxy's rules on two nodes, and balancers that run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.article001 import ab
from lab.article001.deployment import Deployment
from lab.article001.variants import Variant
from lab.balancers import RunningBalancer
from lab.child import Child
from lab.testbed.cluster import SERVICE, Cluster
from lab.testbed.second_node import BOTH_NODES

# Two Services for the same pods that differ in their external traffic policy.
LOCAL = replace(
    SERVICE, name="default/app-local:http", address="10.43.0.81", node_port=30081, external_traffic_policy="Local"
)
SERVICES = (SERVICE, LOCAL)
FIRST_PORT = 8081


class EntryPoints:
    """Entry point of each variant, open during all repetitions: an idle one uses no CPU."""

    def __init__(self, cluster: Cluster, deployment: Deployment, variants: Sequence[Variant]) -> None:
        self._cluster = cluster
        self._running: dict[str, RunningBalancer] = {}
        for port, variant in enumerate(variants, FIRST_PORT):
            if variant.balanced:
                task = variant.task(deployment.addresses())
                self._running[variant.id] = cluster.start_extra_balancer(variant.id, variant.entry, task, port)

    def admin(self, variant: Variant) -> str | None:
        running = self._running.get(variant.id)
        return running.admin if running else None

    def start_ab(self, variant: Variant, clients: int, seconds: float, post_file: Path, run: str) -> Child:
        """Starts the article's load, with a log file for the run; NodePorts serve external clients."""
        argv = ab.command(self._address(variant), clients, seconds, post_file)
        log = f"ab-{variant.id}-{run}.log"
        if variant.entry.startswith("nodeport"):
            assert self._cluster.external_client is not None, "NodePorts require the second node"
            return self._cluster.external_client.start(argv, log)
        return self._cluster.start_client(argv, log, piped=False)

    def _address(self, variant: Variant) -> str:
        match variant.entry:
            case "clusterip":
                return f"{SERVICE.address}:{SERVICE.port}"
            case "nodeport-local":
                return f"{BOTH_NODES}:{LOCAL.node_port}"
            case "nodeport-cluster":
                return f"{BOTH_NODES}:{SERVICE.node_port}"
            case _:
                return self._running[variant.id].address
