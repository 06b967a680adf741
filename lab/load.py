"""Load generator and its endpoints: one process on one CPU, controlled by lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from lab.child import Child, ChildFailed
from lab.paths import binary
from lab.trace import Trace


@dataclass(frozen=True)
class Request:
    """A request of a load, and the length of its answer."""

    method: str = "GET"
    host: str = "lab.example"
    path: str = "/b/100"
    body_bytes: int = 0
    answer_bytes: int = 100
    # Opens a connection for each request.
    close: bool = False
    # A unary gRPC call; requires HTTP/2.
    grpc: bool = False


@dataclass(frozen=True)
class EndpointBehaviour:
    """Behaviour of endpoints: service time, concurrency and defects."""

    delay_us: int = 0
    # Draws exponential delays with the mean `delay_us`.
    exponential: bool = False
    at_once: int | None = None
    seed: int = 0
    # Defect of an endpoint: slow:FACTOR, errors, black-hole, dead, or dead:MILLISECONDS if it returns. It starts when
    # the first load begins to count.
    defects: Mapping[int, str] = field(default_factory=dict)

    def arguments(self) -> list[object]:
        arguments: list[object] = ["--delay-us", self.delay_us, "--seed", self.seed]
        arguments += ["--exponential"] if self.exponential else []
        arguments += ["--at-once", self.at_once] if self.at_once else []
        return arguments + [word for at, kind in self.defects.items() for word in ("--defect", f"{at}={kind}")]


@dataclass(frozen=True)
class LoadReport:
    """Counts between the end of the warm-up and the end of the load."""

    requests: int
    errors: int
    first_error: str | None
    seconds: float
    latency_p10_us: float
    latency_p50_us: float
    latency_p99_us: float
    latency_max_us: float
    served: list[int]
    cpu_ns: int
    wait_ns: int


class LoadGenerator:
    """Endpoints that serve permanently, and one load job at a time against a proxy before them."""

    def __init__(
        self,
        log: Path,
        *,
        cpus: Sequence[int],
        endpoints: int,
        service: EndpointBehaviour | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Starts the process; `prefix` is a command that enters another network and replaces itself."""
        argv = [*prefix, binary("loadgen"), "--endpoints", endpoints, *(service or EndpointBehaviour()).arguments()]
        self._child = Child(argv, log, cpus=cpus, piped=True)
        self.endpoints: tuple[str, ...] = tuple(self._answer()["endpoints"])

    def load(
        self,
        target: str,
        request: Request,
        *,
        connections: int,
        warmup_seconds: float,
        seconds: float,
        processes: Sequence[int] = (),
        spin: bool = True,
        others: Sequence[str] = (),
        streams: int | None = None,
        http3: bool = False,
    ) -> LoadReport:
        """Runs a closed loop over kept-alive connections; they alternate between `target` and `others`.

        With `streams` the connections use HTTP/2 or HTTP/3, with that many concurrent requests each.
        """
        extent = {"warmup_seconds": warmup_seconds, "seconds": seconds, "others": list(others)}
        return self._load(target, request, connections, {**extent, "streams": streams, "http3": http3}, processes, spin)

    def load_exactly(self, target: str, request: Request, *, connections: int, requests: int) -> LoadReport:
        """Sends exactly `requests` requests."""
        return self._load(target, request, connections, {"requests": requests}, (), True)

    def open_loop(
        self,
        target: str,
        request: Request,
        *,
        rate: float,
        seed: int,
        connections: int,
        warmup_seconds: float,
        seconds: float,
        processes: Sequence[int] = (),
    ) -> LoadReport:
        """Runs an open loop: `rate` requests per second at random times, independent of earlier answers.

        Latency counts from the scheduled send time, for successful requests.
        """
        self._request(
            {
                "do": "pace",
                "target": target,
                "rate": rate,
                "seed": seed,
                "connections": connections,
                "request": asdict(request),
                "warmup_seconds": warmup_seconds,
                "seconds": seconds,
                "processes": list(processes),
            }
        )
        return LoadReport(**self._answer())

    def trace(
        self,
        target: str,
        request: Request,
        *,
        connections: int,
        warmup_seconds: float,
        seconds_before: float,
        seconds_after: float,
        drain_seconds: float,
        processes: Sequence[int] = (),
        at_onset: Callable[[], object] = lambda: None,
    ) -> Trace:
        """Runs a closed loop around the onset of defects and reports every request.

        `at_onset` is called at the onset, for defects outside the load generator.
        """
        self._request(
            {
                "do": "trace",
                "target": target,
                "connections": connections,
                "request": asdict(request),
                "warmup_seconds": warmup_seconds,
                "seconds_before": seconds_before,
                "seconds_after": seconds_after,
                "drain_seconds": drain_seconds,
                "processes": list(processes),
            }
        )
        self._answer()
        at_onset()
        return Trace.of(self._answer())

    def handshakes(
        self,
        target: str,
        *,
        host: str,
        resume: bool,
        ask: bool,
        connections: int,
        warmup_seconds: float,
        seconds: float,
        processes: Sequence[int] = (),
        http3: bool = False,
    ) -> LoadReport:
        """Runs TLS or QUIC handshakes, which count as the report's requests; each connection sends a request only if
        `ask`.
        """
        self._request(
            {
                "do": "shake",
                "target": target,
                "host": host,
                "resume": resume,
                "ask": ask,
                "http3": http3,
                "connections": connections,
                "warmup_seconds": warmup_seconds,
                "seconds": seconds,
                "processes": list(processes),
            }
        )
        return LoadReport(**self._answer())

    def _load(
        self,
        target: str,
        request: Request,
        connections: int,
        extent: dict[str, Any],
        processes: Sequence[int],
        spin: bool,
    ) -> LoadReport:
        self._request(
            {
                "do": "load",
                "target": target,
                "connections": connections,
                "request": asdict(request),
                "processes": list(processes),
                "spin": spin,
                **extent,
            }
        )
        return LoadReport(**self._answer())

    def open_idle(self, target: str, request: Request, *, connections: int, at_once: int) -> dict[str, Any]:
        """Opens connections that stay open after one request each, until `close_idle`."""
        self._request(
            {
                "do": "hold",
                "target": target,
                "connections": connections,
                "at_once": at_once,
                "request": asdict(request),
            }
        )
        return self._answer()

    def close_idle(self) -> dict[str, Any]:
        """Closes the idle connections; the answer counts those that the proxy had already closed."""
        self._request({"do": "release"})
        return self._answer()

    def _request(self, job: dict[str, Any]) -> None:
        self._child.stdin.write(json.dumps(job) + "\n")
        self._child.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._child.stdout.readline()
        if not line:
            raise ChildFailed(f"the load generator exited{self._child.log_end()}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()
