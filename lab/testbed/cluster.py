"""Cluster: a node, a client, pods, and endpoints that follow the pods' readiness."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from lab.balancers import BalancerTask, Placement, RunningBalancer, balancer
from lab.child import Child
from lab.testbed import cgroups, conntrack, hosts, second_node
from lab.testbed.cgroups import ControlGroup
from lab.testbed.hosts import Host
from lab.testbed.kube_proxy import KubeProxy, ServicePort
from lab.testbed.ownership import acquire
from lab.testbed.pods import PORT, SECURE_PORT, Application, CpuLimits, Pod, Probe
from lab.testbed.second_node import ExternalClient, SecondNode

# Addresses like those of k3s. The client is a pod of another node, whose packets arrive over a link.
POD_SUBNET = "10.42.0.0/24"
NODE_IN_POD_SUBNET = "10.42.0.1"
CLIENT_SUBNET = "10.42.1.0/24"
NODE = "10.42.1.1"
CLIENT = "10.42.1.2"
SERVICE = ServicePort("default/app:http", "10.43.0.80", 80, 30080, PORT, cluster_subnet="10.42.0.0/16")
# Other ports of the same Service, which only applications with TLS serve.
HTTPS = replace(SERVICE, name="default/app:https", port=443, node_port=30443, target_port=SECURE_PORT)
QUIC = replace(HTTPS, name="default/app:quic", transport="udp")
SERVICES = (SERVICE, HTTPS, QUIC)
BALANCER_PORT = 8080
TOOLS = {
    "ip": "iproute2",
    "iptables-restore": "iptables",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


def obstacle() -> str | None:
    """Returns the reason why this machine cannot have a testbed, or None."""
    if os.geteuid() != 0:
        return "root is required for network namespaces, control groups and iptables rules"
    missing = [f"{tool} (Debian's {package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        return f"missing: {', '.join(missing)}; run scripts/setup lab"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        return "root cannot create network namespaces here, as in most containers"
    groups = cgroups.detect_version(Path("/proc/mounts").read_text())
    if groups is None or not all(os.access(mount, os.W_OK) for mount in groups.mounts):
        return "root cannot create control groups here, as in most containers"
    return None


class Node:
    """State that outlives the runs of an experiment: the bridge and kube-proxy's rules."""

    def __init__(self, top: ControlGroup, services: Sequence[ServicePort]) -> None:
        self._top = top
        self._services = services
        hosts.make_bridge(NODE_IN_POD_SUBNET, POD_SUBNET)
        self._kube_proxy = KubeProxy(services)

    @classmethod
    @contextmanager
    def acquire(cls, services: Sequence[ServicePort] = SERVICES) -> Iterator[Node]:
        """Yields the node, which is the network namespace of this process; removes everything afterwards."""
        with acquire() as top:
            yield cls(top, services)

    @contextmanager
    def cluster(self, folder: Path) -> Iterator[Cluster]:
        """Yields an empty cluster with a client; its processes log to a folder."""
        cluster = Cluster(self._top, self._services, self._kube_proxy, folder)
        try:
            yield cluster
        finally:
            cluster.remove()

    def cpu_seconds(self) -> float:
        """Returns the CPU time of everything on the node."""
        return self._top.cpu_seconds()


class Cluster:
    """Pods of one run, the balancer with their published endpoints, and extra balancers with fixed endpoints."""

    def __init__(self, top: ControlGroup, services: Sequence[ServicePort], kube_proxy: KubeProxy, folder: Path) -> None:
        self.pods: list[Pod] = []
        self.balancer: RunningBalancer | None = None
        self.external_client: ExternalClient | None = None
        self._second: SecondNode | None = None
        self._services = services
        self._extra_balancers: dict[str, RunningBalancer] = {}
        self._started = 0
        # Port of each pod that the balancer uses.
        self._balanced_port = PORT
        self._folder = folder
        self._top = top
        self._kube_proxy = kube_proxy
        self._published: list[str] = []
        self._other_processes: dict[str, Child] = {}
        conntrack.flush()
        kube_proxy.set_endpoints(())
        self._client = Host("client", CLIENT, top.child("client"), folder)
        hosts.connect(self._client, NODE, CLIENT_SUBNET)

    def add_second_node(self) -> None:
        """Adds a second node and an external client."""
        self._second = SecondNode(self._top, self._folder, self._services)
        self.external_client = ExternalClient(self._top, self._folder)

    def start_pod(self, application: Application, limits: CpuLimits, probe: Probe, node: Literal[1, 2] = 1) -> Pod:
        self._started += 1
        name = f"app-{self._started}"
        subnet = POD_SUBNET if node == 1 else second_node.POD_SUBNET
        host = Host(name, f"{subnet.rpartition('.')[0]}.{10 + self._started}", self._top.child(name), self._folder)
        if node == 1:
            hosts.plug_in(host, NODE_IN_POD_SUBNET)
        else:
            assert self._second is not None, "add the second node before its pods"
            self._second.plug_in(host)
        pod = Pod(host, self._folder, application, limits, probe)
        self.pods.append(pod)
        return pod

    def remove_pod(self, pod: Pod) -> None:
        """Removes a pod that no longer receives requests."""
        self.pods.remove(pod)
        pod.remove()

    def start_balancer(self, name: str, task: BalancerTask | None = None) -> str:
        """Starts the balancer on the node with the published endpoints; returns its address.

        The endpoints of `task` are ignored.
        """
        folder = self._folder / name
        folder.mkdir()
        site = Placement(folder, partial(self._launch, "balancer"), NODE, BALANCER_PORT)
        task = task or BalancerTask(())
        self._balanced_port = SECURE_PORT if task.endpoint_protocol == "http3" else PORT
        self.balancer = balancer(name).start(replace(task, endpoints=tuple(self._endpoints())), site)
        return self.balancer.address

    def start_extra_balancer(self, label: str, name: str, task: BalancerTask, port: int) -> RunningBalancer:
        """Starts an extra balancer at its own port; `publish` does not change its endpoints."""
        folder = self._folder / label
        folder.mkdir()
        running = balancer(name).start(task, Placement(folder, partial(self._launch, label), NODE, port))
        self._extra_balancers[label] = running
        return running

    def cpu_seconds(self) -> float:
        """Returns the CPU time of everything: clients, pods and the balancer."""
        return self._top.cpu_seconds()

    def balancer_cpu_seconds(self) -> float:
        """Returns the balancer's CPU time, 0 without a balancer."""
        return self._top.child("balancer").cpu_seconds() if self.balancer else 0.0

    def _endpoints(self) -> list[str]:
        return [f"{pod}:{self._balanced_port}" for pod in self._published]

    def start_on_node(self, name: str, argv: Sequence[object]) -> Child:
        """Starts another process of the node in its own group; it ends with the cluster."""
        child = self._launch(name, argv, self._folder / f"{name}.log")
        self._other_processes[name] = child
        return child

    def _launch(self, name: str, argv: Sequence[object], log: Path) -> Child:
        return Child(self._top.child(name).create().enter_command(argv), log)

    def start_client(
        self,
        argv: Sequence[object],
        log: str = "client.log",
        *,
        piped: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        return self._client.start(argv, self._folder / log, piped=piped, env=env)

    def publish(self, pods: Sequence[Pod], before: Callable[[], None] = lambda: None) -> bool:
        """Publishes these pods as endpoints to kube-proxy and the balancer; returns true if that changes anything."""
        published = [pod.ip for pod in pods]
        if published == self._published:
            return False
        before()
        self._published = published
        if self.balancer:
            self.balancer.set_endpoints(self._endpoints())
        self._kube_proxy.set_endpoints(published, [pod for pod in published if _is_on_first_node(pod)])
        if self._second:
            near = [pod for pod in published if not _is_on_first_node(pod)]
            self._second.kube_proxy.set_endpoints(published, near)
        return True

    def check(self) -> None:
        """Raises if a required process has ended."""
        balancers = [running.child for running in (self.balancer, *self._extra_balancers.values()) if running]
        for child in (*(pod.child for pod in self.pods), *balancers, *self._other_processes.values()):
            child.check()

    def remove(self) -> None:
        if self.balancer:
            self.balancer.child.stop()
            self._top.child("balancer").remove()
        for label, running in self._extra_balancers.items():
            running.child.stop()
            self._top.child(label).remove()
        for name, child in self._other_processes.items():
            child.stop()
            self._top.child(name).remove()
        for pod in self.pods:
            pod.remove()
        for with_before_build in (self.external_client, self._second):
            if with_before_build:
                with_before_build.remove()
        self._client.remove()


def _is_on_first_node(pod: str) -> bool:
    return pod.rpartition(".")[0] == POD_SUBNET.rpartition(".")[0]
