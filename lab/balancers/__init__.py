"""The compared balancers, one file each, which turns a task into the balancer's configuration.

A module here has two functions: `prepare()` installs the program if it is missing and returns its version; `start(task,
placement)` starts it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, Self, cast

from lab import network
from lab.certificate import Certificate
from lab.child import Child, wait_until
from lab.paths import MissingRequirement


@dataclass(frozen=True)
class FailurePolicy:
    """Outlier detection and retries of a balancer."""

    # Attempts of one request in total.
    attempts: int
    # Consecutive failures before an endpoint is ejected.
    failures: int
    connect_timeout_ms: int


@dataclass(frozen=True)
class ReplicaSet:
    """Replicas of Sheave that divide caps, and the one to start."""

    # A loopback address of each, with a free port.
    members: tuple[str, ...]
    member: str
    # Replicas lend slots to one another; otherwise their shares are fixed.
    lease_slots: bool


@dataclass(frozen=True)
class BalancerTask:
    """Features and settings that a balancer must provide."""

    endpoints: tuple[str, ...]
    workers: int = 1
    # Protocol towards endpoints. Clients choose theirs: every balancer here accepts HTTP/1.1 and HTTP/2 at one address.
    # Endpoints of HTTP/3 use the certificate of `endpoint_ca`.
    endpoint_protocol: Literal["http1", "http2", "grpc", "http3"] = "http1"
    # Certificate for TLS towards clients.
    certificate: Certificate | None = None
    # HTTP/3 towards clients, at the UDP port of the same number. Requires a certificate.
    http3: bool = False
    # QUIC congestion control for long-distance clients, without any other limit of a connection.
    quic_congestion_control: Literal["cubic", "bbr"] | None = None
    # Authority of endpoints that use TLS; their name is the certificate's.
    endpoint_ca: Certificate | None = None
    # Maximum concurrent streams of a client's HTTP/2 connection; None is the balancer's default.
    client_streams: int | None = None
    # In-flight limit of one endpoint, or `auto` for a learned one; other requests wait in a queue.
    cap: int | Literal["auto"] | None = None
    # In-flight limits of endpoints that differ, instead of `cap`.
    caps: Mapping[str, int] = field(default_factory=dict)
    # Other replicas of the balancer, with which it divides the cap.
    replicas: ReplicaSet | None = None
    # Length of the queue; each default is more than any client here needs.
    queue: int | None = None
    # In-flight limit of all endpoints together; other requests are refused.
    in_flight: int | None = None
    # Keeps idle connections to endpoints for reuse.
    keep_idle: bool = True
    # Number of routes by host and path, of which clients request one; None is one route for everything.
    routes: int | None = None
    # Response headers that the balancer removes.
    removed_headers: tuple[str, ...] = ()
    # Folder with tls.crt, tls.key and ca.crt of an xDS server for clients that balance calls themselves; None is off.
    xds_certificates: Path | None = None
    # Moves bodies inside the kernel.
    splice: bool = False
    # Outlier detection and retries; None is off.
    failure_policy: FailurePolicy | None = None
    # Algorithm in the balancer's own term, instead of the default of its file.
    algorithm: str | None = None
    # Uses a beginner's configuration: endpoints and required timeouts; all load balancing and failure handling is the
    # program's default.
    defaults: bool = False

    def __post_init__(self) -> None:
        if self.defaults and (self.failure_policy or self.algorithm or self.cap or self.caps):
            raise ValueError("defaults have no failure policy, no algorithm and no cap")


@dataclass(frozen=True)
class Placement:
    """Location of a balancer: folder for configuration and logs, process launcher, address."""

    folder: Path
    # Starts a command that logs to a file. A launcher for another namespace or cgroup must replace itself with the
    # command, not run it as a child.
    launch: Callable[[Sequence[object], Path], Child]
    host: str = "127.0.0.1"
    # 0 is any free port.
    port: int = 0
    # Another build of Sheave.
    program: Path | None = None

    @classmethod
    def pinned(cls, folder: Path, cpus: Sequence[int], program: Path | None = None) -> Self:
        """Returns a placement on loopback, pinned to these CPUs."""
        return cls(folder, partial(Child, cpus=cpus), program=program)

    def choose_address(self) -> str:
        """Returns a listen address, for programs that cannot choose a port themselves."""
        return f"{self.host}:{self.port or network.free_port()}"

    def start(self, name: str, argv: Sequence[object], ready: Callable[[Child], object], seconds: float = 15) -> Child:
        """Starts a command that logs to NAME.log, and waits until it is ready."""
        child = self.launch(argv, self.folder / f"{name}.log")
        try:
            wait_until(lambda: ready(child), child, f"{name}'s listener", seconds)
        except BaseException:
            child.stop()
            raise
        return child


def listening(address: str) -> Callable[[Child], bool]:
    """Returns a check whether a process listens at the address, without a connection, because of other namespaces."""
    port = int(address.rpartition(":")[2])
    return lambda child: network.listens(child.processes(), port)


@dataclass(frozen=True)
class RunningBalancer:
    """A running balancer."""

    address: str
    child: Child
    # Replaces the endpoints while requests run, in the way that the balancer's manual recommends.
    set_endpoints: Callable[[Sequence[str]], None]
    # Admin address on the node's loopback, if any.
    admin: str | None = None
    # Address of the xDS server, if any.
    xds: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()


class Balancer(Protocol):
    def prepare(self) -> str: ...

    def start(self, task: BalancerTask, placement: Placement) -> RunningBalancer: ...


class UnsupportedTask(Exception):
    """The balancer's file does not support the task."""


def balancer(name: str) -> Balancer:
    """Returns the balancer of this name; raises an error with the valid names otherwise."""
    known = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    if name not in known:
        raise MissingRequirement(f"there is no balancer '{name}'; there are: {', '.join(known)}")
    return cast(Balancer, importlib.import_module(f"lab.balancers.{name}"))


def replace_file(path: Path, text: str) -> None:
    """Replaces a watched file atomically: a reader sees the old or the new content, never a part."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)
