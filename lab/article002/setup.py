"""The article's servers and client on the testbed, with an entry point between them."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab import certificate, golang
from lab.article002.calls import Call, read
from lab.balancers import BalancerTask, replace_file
from lab.balancers.sheave import XDS_TARGET, xds_bootstrap
from lab.child import Child, ChildFailed, wait_until
from lab.testbed.cluster import NODE, SERVICE, Cluster, Node
from lab.testbed.pods import PORT, Application, CpuLimits, Pod, Probe

MODULE = Path(__file__).parent
DNS_NAME = "echo.test."
DNS_PORT = 53
# More than the concurrent calls; each balancer's default is about a hundred.
CLIENT_STREAMS = 10_000
PROBE = Probe(period_seconds=5, timeout_seconds=1, failure_threshold=3)
READY_SECONDS = 15


@dataclass(frozen=True)
class Variant:
    """Settings of one variant."""

    id: str
    # bursts: simultaneous calls to one server. shares: calls at a steady rate to three. newcomer: the third server
    # starts during the calls. scaled: a Deployment of one server is scaled to three during the calls. adopted: the same,
    # and then the Service is annotated.
    kind: str
    # direct, clusterip, dns, or the name of a balancer.
    entry: str
    connection_per_call: bool = False
    # gRPC's MaxConnectionAge.
    age_seconds: float = 0
    resolution_interval_seconds: float = 30
    policy: str = "pick_first"
    # The client balances each call itself, by the xDS server of Sheave as the entry.
    xds: bool = False


@dataclass(frozen=True)
class CallTimes:
    """Service time of a call, and the client's deadline."""

    delay_ms: int
    deadline_ms: int


class GrpcSetup:
    """Ready servers, and an entry point to them."""

    def __init__(self, cluster: Cluster, variant: Variant, times: CallTimes, folder: Path) -> None:
        self.cluster = cluster
        self._variant = variant
        self._times = times
        self._program = golang.build(MODULE)
        # CPU time of the last calls: client, servers and whatever is between them, without their start.
        self.cpu_seconds = 0.0
        self._cpu_seconds_before = 0.0
        self._folder = folder
        self._dns_records = folder / "servers.txt"
        self._client_environment: dict[str, str] = {}
        self._resolver: Child | None = None
        self._target = ""

    def start_server(self) -> Pod:
        """Starts one more server and waits until it is ready, without publishing it."""
        arguments = ["-delay", f"{self._times.delay_ms}ms", "-age", f"{self._variant.age_seconds}s"]
        application = Application(lambda address: [self._program, "serve", address, *arguments], _accepts_connection)
        pod = self.cluster.start_pod(application, CpuLimits(), PROBE)
        wait_until(lambda: pod.ready, pod.child, pod.name, READY_SECONDS)
        return pod

    def open(self) -> None:
        """Publishes the servers, and starts the entry point."""
        self.publish()
        self._target = self._entry_address()

    def publish(self) -> None:
        """Publishes all servers, to DNS as well."""
        addresses = [pod.address.partition(":")[0] for pod in self.cluster.pods]
        replace_file(self._dns_records, "\n".join(addresses))
        self.cluster.publish(self.cluster.pods)

    def _entry_address(self) -> str:
        """Returns the address for the client."""
        match self._variant.entry:
            case "direct":
                return self.cluster.pods[0].address
            case "clusterip":
                return f"{SERVICE.address}:{SERVICE.port}"
            case "dns":
                self._resolver = self._start_resolver()
                return f"dns://{NODE}:{DNS_PORT}/{DNS_NAME}:{PORT}"
            case name:
                return self._start_balancer(name)

    def _start_balancer(self, name: str) -> str:
        task = BalancerTask((), endpoint_protocol="grpc", client_streams=CLIENT_STREAMS)
        if not self._variant.xds:
            return self.cluster.start_balancer(name, task)
        certificates = self._make_certificates()
        self.cluster.start_balancer(name, replace(task, xds_certificates=certificates))
        assert self.cluster.balancer is not None and self.cluster.balancer.xds is not None, "it was started with both"
        bootstrap = self._folder / "bootstrap.json"
        bootstrap.write_text(xds_bootstrap(self.cluster.balancer.xds, certificates))
        self._client_environment["GRPC_XDS_BOOTSTRAP"] = str(bootstrap)
        return XDS_TARGET

    def _make_certificates(self) -> Path:
        """Returns a folder with a certificate that the xDS server and its client share."""
        folder = self._folder / "certificates"
        folder.mkdir()
        made = certificate.make(folder, NODE)
        for file, name in ((made.chain, "tls.crt"), (made.key, "tls.key"), (made.authority, "ca.crt")):
            shutil.copy(file, folder / name)
        return folder

    def _start_resolver(self) -> Child:
        arguments = ["resolve", f"{NODE}:{DNS_PORT}", "-name", DNS_NAME, "-servers", self._dns_records]
        resolver = self.cluster.start_on_node("dns", [self._program, *arguments])
        wait_until(lambda: "listening" in resolver.log.read_text(), resolver, "the DNS server")
        return resolver

    def burst(self, calls: int) -> list[Call]:
        """Sends `calls` simultaneous calls."""
        return self.finish(self.start_calls("-calls", calls))

    def start_calls(self, *arguments: object) -> Child:
        """Starts a client that is connected and begins to send."""
        variant = self._variant
        argv: list[object] = [self._program, "call", self._target, *arguments, "-policy", variant.policy]
        argv += ["-deadline", f"{self._times.deadline_ms}ms"]
        argv += ["-resolution-interval", f"{variant.resolution_interval_seconds}s"]
        argv += ["-connection-per-call"] if variant.connection_per_call else []
        client = self.cluster.start_client(argv, env=self._client_environment)
        if client.stdout.readline() != "ready\n":
            client.stop()
            raise ChildFailed(f"the client does not reach {self._target}{client.log_end()}")
        self._cpu_seconds_before = self.cluster.cpu_seconds()
        return client

    def finish(self, client: Child) -> list[Call]:
        """Waits for the client's exit; returns its calls."""
        with client:
            calls = read(client.stdout)
        self.cpu_seconds = self.cluster.cpu_seconds() - self._cpu_seconds_before
        self.cluster.check()
        return calls

    def dns_questions(self) -> int | None:
        """Returns the number of DNS queries for the servers so far."""
        return self._resolver.log.read_text().splitlines().count(DNS_NAME) if self._resolver else None


@contextmanager
def open_setup(node: Node, variant: Variant, servers: int, times: CallTimes, folder: Path) -> Iterator[GrpcSetup]:
    """Yields an empty cluster with `servers` servers and an entry point; removes everything afterwards."""
    with node.cluster(folder) as cluster:
        setup = GrpcSetup(cluster, variant, times, folder)
        for _ in range(servers):
            setup.start_server()
        setup.open()
        yield setup


def _accepts_connection(address: str, timeout_seconds: float) -> bool:
    """Returns true if the address passes a probe with tcpSocket."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout_seconds).close()
    except OSError:
        return False
    return True


def sleep_until(moment: float) -> None:
    """Sleeps until a time of the wall clock, which calls use for their send times."""
    time.sleep(max(0.0, moment - time.time()))
