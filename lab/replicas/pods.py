"""Endpoints that count their requests in flight, as a pod with a cap would see them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lab.replicas.plan import PlannedRequest

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
END_OF_HEAD = b"\r\n\r\n"
MAX_HEAD_BYTES = 16 * 1024


@dataclass
class OverCap:
    """A request that began at an endpoint although the cap was reached."""

    at_seconds: float
    endpoint: int
    # Requests in flight, this one included.
    in_flight: int
    # Those of them whose connection the balancer had closed: it has died, or given them up.
    abandoned: int


@dataclass
class Pod:
    """One endpoint. A request counts from its head to its answer, also if its connection is closed meanwhile."""

    number: int
    cap: int
    in_flight: int = 0
    abandoned: int = 0
    max_in_flight: int = 0
    requests: int = 0
    over: list[OverCap] = field(default_factory=list)
    # Time during which more requests than the cap were in flight.
    over_seconds: float = 0.0
    _over_since: float = 0.0

    def begin(self, now: float) -> None:
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if self.in_flight > self.cap:
            self.over.append(OverCap(now, self.number, self.in_flight, self.abandoned))
        if self.in_flight == self.cap + 1:
            self._over_since = now

    def end(self, now: float, *, abandoned: bool) -> None:
        if self.in_flight == self.cap + 1:
            self.over_seconds += now - self._over_since
        self.in_flight -= 1
        self.abandoned -= abandoned

    def reset(self) -> None:
        """Starts new counts; requests in flight stay."""
        self.max_in_flight, self.requests, self.over, self.over_seconds = self.in_flight, 0, [], 0.0


class Service:
    """Requests of the load in force, with the time that each has taken at its endpoint."""

    def __init__(self) -> None:
        self._planned: Sequence[PlannedRequest] = ()
        self.took_seconds: dict[int, float] = {}

    def begin(self, planned: Sequence[PlannedRequest]) -> None:
        self._planned, self.took_seconds = planned, {}

    def seconds(self, request: int) -> float:
        return self._planned[request].service_seconds if request < len(self._planned) else 0.0


class PodConnection(asyncio.Protocol):
    """Connection of a balancer, with one request at a time."""

    def __init__(self, pod: Pod, service: Service) -> None:
        self._pod, self._service = pod, service
        self._loop = asyncio.get_running_loop()
        self._read = b""
        self._transport: asyncio.Transport | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        set_no_delay(transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, rest = self._read.partition(END_OF_HEAD)
        if end:
            self._read = rest
            self._begin(request_number(head), self._loop.time())
        elif len(self._read) > MAX_HEAD_BYTES and self._transport:
            self._transport.close()

    def _begin(self, request: int, now: float) -> None:
        self._busy = True
        self._pod.begin(now)
        self._loop.call_at(now + self._service.seconds(request), self._end, request, now)

    def _end(self, request: int, began: float) -> None:
        now = self._loop.time()
        self._busy = False
        self._pod.end(now, abandoned=self._transport is None)
        self._service.took_seconds[request] = now - began
        if self._transport:
            self._transport.write(ANSWER)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._pod.abandoned += self._busy


def request_number(head: bytes) -> int:
    """Returns the number in the path of a request: /r/NUMBER."""
    return int(head.split(b" ", 2)[1].rpartition(b"/")[2])


async def listen(pods: Sequence[Pod], service: Service) -> list[str]:
    """Starts the endpoints, each at a loopback address of its own; returns their addresses."""
    addresses = []
    loop = asyncio.get_running_loop()
    for pod in pods:
        host = f"127.0.1.{pod.number + 1}"
        server = await loop.create_server(lambda pod=pod: PodConnection(pod, service), host, 0, backlog=1024)
        addresses.append(f"{host}:{server.sockets[0].getsockname()[1]}")
    return addresses


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def counts(pods: Sequence[Pod]) -> Mapping[str, object]:
    """Returns what all endpoints have counted together."""
    over = sorted((each for pod in pods for each in pod.over), key=lambda it: it.at_seconds)
    return {
        "served": sum(pod.requests for pod in pods),
        "max_in_flight": max(pod.max_in_flight for pod in pods),
        "over_seconds": sum(pod.over_seconds for pod in pods),
        "over": [[it.at_seconds, it.endpoint, it.in_flight, it.abandoned] for it in over],
    }
