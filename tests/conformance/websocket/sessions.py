"""The sessions that are to come: what the server of each does, and what it has seen."""

from __future__ import annotations

import asyncio
from typing import Any

from wsproto.connection import ConnectionType
from wsproto.extensions import PerMessageDeflate

from frames import Case
from sides import Channel, Record, accept, answer, run_case

Address = tuple[str, int]

# For each session: longer than any takes on a busy machine.
SECONDS = 60


class Refused(Exception):
    """A server has refused a WebSocket."""


class Session:
    """One WebSocket, for one case that its client or its server runs."""

    def __init__(self, case: Case, server_runs: bool) -> None:
        self._case = case
        self._server_runs = server_runs
        self._extensions: list[PerMessageDeflate] = []
        self._offer = ""
        self._record: asyncio.Future[Record] = asyncio.get_running_loop().create_future()

    def accept(self, offer: str) -> str:
        """Returns the server's answer to the extensions that have reached it."""
        answer, self._extensions = accept(offer)
        self._offer = offer
        return answer

    async def serve(self, channel: Channel) -> None:
        """Does what the server does."""
        try:
            record = await self._serve(channel)
        except Exception as error:
            if not self._record.done():
                self._record.set_exception(error)
        else:
            self._record.set_result(record)

    async def _serve(self, channel: Channel) -> Record:
        async with asyncio.timeout(SECONDS):
            if self._server_runs:
                return await run_case(self._case, channel, ConnectionType.SERVER, self._extensions, self._offer)
            return await answer(channel, ConnectionType.SERVER, self._extensions, self._offer)

    async def record(self) -> Record:
        """Waits for what the server has seen."""
        return await self._record


class Sessions:
    """Sessions by their path, and what has to live as long as they may come."""

    def __init__(self) -> None:
        self._by_number: dict[str, Session] = {}
        self._kept: list[Any] = []

    def expect(self, session: Session) -> str:
        """Returns the last part of the path of a session."""
        number = str(len(self._by_number))
        self._by_number[number] = session
        return number

    def find(self, path: str) -> Session:
        return self._by_number[path.rsplit("/", 1)[1]]

    def keep(self, value: Any) -> None:
        self._kept.append(value)


def listening_address(server: asyncio.Server) -> Address:
    host, port = server.sockets[0].getsockname()
    return host, port
