"""Server of a pod that counts its requests in flight, as a pod with a cap sees them. Pods run it by `python3 -c`.

GET /counts returns the counts, with the most requests since the last report; it is not counted. Any other request is
answered after a random time, with the pod and the time at which the request arrived. CAP is the number of requests that
the pod should have at most. Each LONG_EVERY-th request takes LONG_SECONDS; 0 means none.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time

MEAN_SECONDS = 0.1
# Longest time of a request, except a long one.
SHORT_SECONDS = 0.5
LONG_SECONDS = 3.0
# The number of recorded requests over the cap. Those beyond it are counted.
MAX_RECORDS = 1000

POD = os.environ.get("POD_NAME", "")
CAP = int(os.environ.get("CAP", "1000000"))
LONG_EVERY = int(os.environ.get("LONG_EVERY", "0"))


class Counts:
    """Requests of this pod. Times are those of the monotonic clock, which all pods of the machine share."""

    def __init__(self) -> None:
        self.served = self.most = self.most_since_report = self.over_cap = 0
        self.records: list[dict[str, object]] = []
        # Replica and begin of each request in flight.
        self.in_flight: dict[int, tuple[str, float]] = {}
        # Sum of the time that each request has been in flight.
        self._busy_seconds, self._counted_until = 0.0, time.monotonic()

    def begin(self, request: int, replica: str) -> None:
        now = self._count_time()
        if len(self.in_flight) >= CAP:
            self.over_cap += 1
            if len(self.records) < MAX_RECORDS:
                self.records.append({"at": now, "replica": replica, "others": list(self.in_flight.values())})
        self.in_flight[request] = (replica, now)
        self.served += 1
        self.most = max(self.most, len(self.in_flight))
        self.most_since_report = max(self.most_since_report, len(self.in_flight))

    def end(self, request: int) -> None:
        self._count_time()
        del self.in_flight[request]

    def report(self) -> dict[str, object]:
        now = self._count_time()
        counts = {
            "served": self.served,
            "most": self.most,
            "most_since_report": self.most_since_report,
            "over_cap": self.over_cap,
            "records": self.records,
        }
        self.most_since_report = len(self.in_flight)
        return {"pod": POD, "at": now, "busy_seconds": self._busy_seconds, **counts}

    def _count_time(self) -> float:
        now = time.monotonic()
        self._busy_seconds += len(self.in_flight) * (now - self._counted_until)
        self._counted_until = now
        return now


class Connection(asyncio.Protocol):
    """Connection of a replica, with one request at a time. A request goes on if the connection is closed."""

    counts = Counts()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        self._transport = transport
        self._replica = transport.get_extra_info("peername")[0].removeprefix("::ffff:")
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, self._received = self._received.partition(b"\r\n\r\n")
        if not end:
            self._received = head
        elif head.startswith(b"GET /counts "):
            self._answer(self.counts.report())
        else:
            self._begin()

    def _begin(self) -> None:
        request = self.counts.served
        self.counts.begin(request, self._replica)
        is_long = LONG_EVERY and request % LONG_EVERY == LONG_EVERY - 1
        seconds = LONG_SECONDS if is_long else min(random.expovariate(1 / MEAN_SECONDS), SHORT_SECONDS)
        asyncio.get_running_loop().call_later(seconds, self._end, request, time.monotonic())

    def _end(self, request: int, began: float) -> None:
        # The slot is free before the answer that makes the replica use it again.
        self.counts.end(request)
        self._answer({"pod": POD, "began": began})

    def _answer(self, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "", 3000, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
