"""The balancers that are compared, each in one file that turns the same task into its own configuration.

A module here has two functions: `prepare()` fetches what is missing and returns the version; `start(task, placement)`
returns it running.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, Self, cast

from lab import network
from lab.certificate import Certificate
from lab.child import Child, wait_until
from lab.paths import MissingRequirement


@dataclass(frozen=True)
class FailurePolicy:
    """What a balancer does about endpoints that fail: it leaves them out for a while, and asks another one."""

    # Of one request, in all.
    attempts: int
    # Failures in a row after which an endpoint is left out.
    failures: int
    connect_timeout_ms: int


@dataclass(frozen=True)
class BalancerTask:
    """What a balancer is asked to do."""

    endpoints: tuple[str, ...]
    workers: int = 1
    # What endpoints speak. Clients choose for themselves: every balancer here takes HTTP/1.1 and HTTP/2 at one address.
    # Endpoints of HTTP/3 have the certificate that is named with `endpoint_ca`.
    endpoint_protocol: Literal["http1", "http2", "grpc", "http3"] = "http1"
    # Clients come by TLS.
    certificate: Certificate | None = None
    # Then they may come by HTTP/3 too, at the UDP port of the same number.
    http3: bool = False
    # What QUIC is to go by, for clients that are far away: all else that would bound a connection is out of its way.
    quic_congestion_control: Literal["cubic", "bbr"] | None = None
    # Who vouches for endpoints that are spoken to by TLS; their name is the certificate's.
    endpoint_ca: Certificate | None = None
    # Requests that a client may have under way on one HTTP/2 connection, where that is not the balancer's to say.
    client_streams: int | None = None
    # Requests that one endpoint may have in flight, or that it is to be learned; the rest wait in a queue.
    cap: int | Literal["auto"] | None = None
    # How many may wait there; the default of each is more than any client here has under way.
    queue: int | None = None
    # Requests that all endpoints together may have in flight; the rest are refused.
    in_flight: int | None = None
    # Idle connections to endpoints are kept for requests to come.
    keep_idle: bool = True
    # Routes by host and path, one of which is asked for; without it one route takes everything.
    routes: int | None = None
    # Fields of answers that endpoints send and clients do not get.
    removed_headers: tuple[str, ...] = ()
    # Bodies are moved inside the kernel.
    splice: bool = False
    # Endpoints are watched, and failed requests sent again.
    failure_policy: FailurePolicy | None = None
    # Another way to choose an endpoint than the one that a balancer's file has, in the balancer's own word.
    algorithm: str | None = None
    # The configuration that a user begins with: endpoints and, where a program needs them, timeouts; everything that
    # decides about endpoints and failures is the program's own default.
    defaults: bool = False

    def __post_init__(self) -> None:
        if self.defaults and (self.failure_policy or self.algorithm or self.cap):
            raise ValueError("defaults have no failure policy, no algorithm and no cap")


@dataclass(frozen=True)
class Placement:
    """Where a balancer runs: a folder of its own for configuration and logs, a way to start processes, an address."""

    folder: Path
    # Starts a command that logs to a file. Whoever wants it in another namespace or cgroup passes what does that; the
    # command must end up in the process itself, not in a child of it.
    launch: Callable[[Sequence[object], Path], Child]
    host: str = "127.0.0.1"
    # 0 is any that is free.
    port: int = 0
    # Another build of Sheave than the tree's.
    program: Path | None = None

    @classmethod
    def pinned(cls, folder: Path, cpus: Sequence[int], program: Path | None = None) -> Self:
        """On loopback, on these CPUs alone."""
        return cls(folder, partial(Child, cpus=cpus), program=program)

    def choose_address(self) -> str:
        """The address to listen at, for programs that cannot choose a port themselves."""
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
    """Whether a process listens at this address, asked without a connection: it may be in another namespace."""
    port = int(address.rpartition(":")[2])
    return lambda child: network.listens(child.processes(), port)


@dataclass(frozen=True)
class RunningBalancer:
    """A balancer that serves."""

    address: str
    child: Child
    # Replaces the endpoints while requests run, in the way its manual gives for that.
    set_endpoints: Callable[[Sequence[str]], None]
    # Where it says how it is doing, on the node's loopback, if it does.
    admin: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()


class Balancer(Protocol):
    def prepare(self) -> str: ...

    def start(self, task: BalancerTask, placement: Placement) -> RunningBalancer: ...


class UnsupportedTask(Exception):
    """This balancer's file does not know how to do this task."""


def balancer(name: str) -> Balancer:
    """The balancer of this name, or an error that lists those there are."""
    known = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    if name not in known:
        raise MissingRequirement(f"there is no balancer '{name}'; there are: {', '.join(known)}")
    return cast(Balancer, importlib.import_module(f"lab.balancers.{name}"))


def replace_file(path: Path, text: str) -> None:
    """Writes a file that a running process watches: it sees the old one or the new one, never a part."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)
