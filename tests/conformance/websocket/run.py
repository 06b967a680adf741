"""Runs each case of `cases.tsv` through Sheave between every pair of HTTP versions, with wsproto as both ends.

Once the client is the side that runs the case, and once the server. Both have to see what they see without Sheave.

    python run.py FOLDER

FOLDER has `ca.pem`, and `chain.pem` and `key.pem` of the endpoints. The first line of output is an object with the
addresses of the endpoints by HTTP version. The input is such an object of Sheave's listeners. Each path begins with the
version of the endpoint that it is for. The last line counts what was the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from wsproto.connection import ConnectionType

import over_http1
import over_http2
import over_http3
from frames import Case, read_cases
from sessions import SECONDS, Address, Refused, Session, Sessions
from sides import Channel, Record, agreed, answer, run_case

VERSIONS = ("1", "2", "3")


class Client(Protocol):
    async def open(self, path: str, offer: str) -> tuple[Channel, str]: ...

    async def close(self) -> None: ...


Seen = tuple[Record, Record]


async def run(sessions: Sessions, client: Client, endpoint: str, case: Case, server_runs: bool) -> Seen:
    """Runs one case; returns what the client and the server have seen."""
    session = Session(case, server_runs)
    path = f"/{endpoint}/{case.number}/{sessions.expect(session)}"
    async with asyncio.timeout(SECONDS):
        channel, extension = await client.open(path, case.offer)
        extensions = agreed(extension, case.offer)
        if server_runs:
            seen = await answer(channel, ConnectionType.CLIENT, extensions, extension)
        else:
            seen = await run_case(case, channel, ConnectionType.CLIENT, extensions, extension)
        return seen, await session.record()


class Comparison:
    """What is seen without Sheave, over HTTP/1.1, and what differs from it."""

    def __init__(self, sessions: Sessions, cases: list[Case]) -> None:
        self._sessions = sessions
        self._cases = cases
        self._expected: dict[tuple[str, bool], Seen] = {}
        self.same = 0
        self.different: list[str] = []

    async def compare(self, name: str, client: Client, endpoint: str) -> None:
        for case in self._cases:
            for server_runs in (False, True):
                await self._compare(name, client, endpoint, case, server_runs)
        await client.close()

    async def _compare(self, name: str, client: Client, endpoint: str, case: Case, server_runs: bool) -> None:
        try:
            seen = await run(self._sessions, client, endpoint, case, server_runs)
        except (TimeoutError, Refused, OSError) as error:
            self.different.append(f"{name}, {case.number}, server runs: {server_runs}: {error!r}")
            return
        expected = self._expected.setdefault((case.number, server_runs), seen)
        if seen == expected and all(record.end == "ended" for record in seen):
            self.same += 1
        else:
            self.different.append(f"{name}, {case.number}, server runs: {server_runs}:\n  {seen}\n  not {expected}")


async def main(folder: Path) -> None:
    sessions = Sessions()
    authority = folder / "ca.pem"
    endpoints = {
        "1": await over_http1.start_server(sessions),
        "2": await over_http2.start_server(sessions),
        "3": await over_http3.start_server(sessions, folder / "chain.pem", folder / "key.pem"),
    }
    print(json.dumps({version: f"{host}:{port}" for version, (host, port) in endpoints.items()}), flush=True)
    listeners = json.loads(await asyncio.to_thread(sys.stdin.readline))
    sheave = {version: _parse_address(text) for version, text in listeners.items()}
    clients: dict[str, Callable[[Address], Client]] = {
        "1": over_http1.Client,
        "2": over_http2.Client,
        "3": lambda address: over_http3.Client(address, authority),
    }

    comparison = Comparison(sessions, read_cases(Path(__file__).parent / "cases.tsv"))
    for version in VERSIONS:
        await comparison.compare(f"HTTP/{version}", clients[version](endpoints[version]), version)
    for client in VERSIONS:
        for endpoint in VERSIONS:
            name = f"HTTP/{client} to HTTP/{endpoint}"
            await comparison.compare(name, clients[client](sheave[client]), endpoint)
    for line in comparison.different:
        print(line)
    print(f"same: {comparison.same}, different: {len(comparison.different)}")
    sys.exit(bool(comparison.different))


def _parse_address(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
