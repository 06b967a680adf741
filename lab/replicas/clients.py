"""Clients of the balancers: an open loop over kept-alive connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lab.replicas.plan import PlannedRequest
from lab.replicas.pods import END_OF_HEAD, set_no_delay

SUCCESS = "200"
NO_ANSWER = "no answer"


class ClientConnection(asyncio.Protocol):
    """Connection to a balancer, with one request at a time."""

    def __init__(self, clients: Clients, target: str) -> None:
        self._clients, self.target = clients, target
        self._read = b""
        self.transport: asyncio.Transport | None = None
        self._request: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        set_no_delay(transport)
        self.transport = transport

    def send(self, request: int) -> None:
        assert self.transport is not None, "an idle connection is open"
        self._request = request
        self.transport.write(f"GET /r/{request} HTTP/1.1\r\nhost: lab.example\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(END_OF_HEAD)
        if not end:
            return
        status = head.split(b" ", 2)[1].decode()
        if status == SUCCESS and len(body) < 2:
            return
        self._read = b""
        self._conclude(status)
        if status != SUCCESS:
            self._close()
        else:
            self._clients.idle(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._clients.forget(self)
        self._conclude("connection closed")

    def _close(self) -> None:
        if self.transport:
            self.transport.close()

    def abort(self) -> None:
        """Gives up the request in flight."""
        self._request = None
        if self.transport:
            self.transport.abort()

    def _conclude(self, outcome: str) -> None:
        if self._request is not None:
            request, self._request = self._request, None
            self._clients.conclude(request, outcome)


class Clients:
    """Sends planned requests at their times, and records how each ended."""

    def __init__(self, targets: Sequence[str], planned: Sequence[PlannedRequest], connections: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._targets, self._planned, self._connections = targets, planned, connections
        self._idle: dict[str, list[ClientConnection]] = {target: [] for target in targets}
        self._open: set[ClientConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._next = 0
        self.began = 0.0
        # Send time and duration in seconds, and the outcome, by request.
        self.sent: list[float] = [0.0] * len(planned)
        self.took: list[float] = [0.0] * len(planned)
        self.outcomes: list[str] = [NO_ANSWER] * len(planned)
        self.unfinished = len(planned)

    async def connect(self) -> None:
        """Opens connections beforehand, so that requests need not wait for one."""
        for target in self._idle:
            for _ in range(self._connections):
                self._idle[target].append(await self._connection(target))

    def begin(self) -> None:
        self.began = self._loop.time()
        self._send_due()

    def _send_due(self) -> None:
        elapsed = self._loop.time() - self.began
        while self._next < len(self._planned) and self._planned[self._next].at_seconds <= elapsed:
            self._send(self._next)
            self._next += 1
        if self._next < len(self._planned):
            self._loop.call_at(self.began + self._planned[self._next].at_seconds, self._send_due)

    def _send(self, request: int) -> None:
        self.sent[request] = self._loop.time() - self.began
        target = self._targets[self._planned[request].replica]
        if self._idle[target]:
            self._idle[target].pop().send(request)
            return
        task = self._loop.create_task(self._connect_and_send(target, request))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect_and_send(self, target: str, request: int) -> None:
        try:
            connection = await self._connection(target)
        except OSError:
            self.conclude(request, "refused")
            return
        connection.send(request)

    async def _connection(self, target: str) -> ClientConnection:
        host, _, port = target.rpartition(":")
        _, connection = await self._loop.create_connection(lambda: ClientConnection(self, target), host, int(port))
        self._open.add(connection)
        return connection

    def idle(self, connection: ClientConnection) -> None:
        self._idle[connection.target].append(connection)

    def forget(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle[connection.target]:
            self._idle[connection.target].remove(connection)

    def conclude(self, request: int, outcome: str) -> None:
        self.took[request] = self._loop.time() - self.began - self.sent[request]
        self.outcomes[request] = outcome
        self.unfinished -= 1

    def close(self) -> None:
        """Closes all connections; requests in flight have no answer."""
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._open):
            connection.abort()
