"""Measurements of one arm: streams by iperf3, round trips and new connections by the load generator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.article003.arms import DataPath
from lab.article003.services import ECHO_PORT, IPERF_PORT
from lab.article003.site import CLIENT, POD, Site, check_output
from lab.child import ChildFailed
from lab.load import LoadGenerator, LoadReport, Request
from lab.testbed.hosts import Host

# Port of the client, to which the other node's pod sends.
SIDE_PORT = 5202
PATIENCE_SECONDS = 60.0
OMITTED_SECONDS = 2
# A short exchange: the smallest answer.
EXCHANGE = Request(path="/b/1", answer_bytes=1)
GIGABYTE = 1e9


@dataclass(frozen=True)
class StreamReport:
    """What one run of iperf3 transferred, and the CPU time meanwhile."""

    bytes: int
    seconds: float
    # Of the processes at both ends, and of the kernel's threads for packets.
    cpu_seconds: float
    # Of the whole machine, other programs included.
    machine_cpu_seconds: float

    @property
    def mbit(self) -> float:
        return self.bytes * 8 / self.seconds / 1e6

    def per_gigabyte(self, cpu_seconds: float) -> float:
        return cpu_seconds / (self.bytes / GIGABYTE)


@dataclass(frozen=True)
class MeasuredArm:
    """An arm that is set up."""

    name: str
    site: Site
    path: DataPath

    def stream(self, seconds: float, *, streams: int = 1) -> StreamReport:
        """Sends as much as possible through the balancer."""
        with self._iperf_server(self.site.pod, POD, IPERF_PORT):
            return self._iperf(self.site.client, self.path.target, IPERF_PORT, seconds, ["--parallel", streams])

    def busy_download(self, seconds: float) -> tuple[StreamReport, StreamReport]:
        """Receives through the balancer, while the pod of the first node sends to the client too.

        Returns the reports of both, without the time in which they find their rates.
        """
        words = ["--omit", OMITTED_SECONDS]
        with (
            self._iperf_server(self.site.pod, POD, IPERF_PORT),
            self._iperf_server(self.site.client, CLIENT, SIDE_PORT),
            self.site.pods["node-a"].start(
                _client(CLIENT, SIDE_PORT, seconds, words), self.site.folder / "side.log", piped=True
            ) as side,
        ):
            words = [*words, "--reverse"]
            report = self._iperf(self.site.client, self.path.target, IPERF_PORT, seconds, words)
            return report, _report(side.stdout.read(), 0.0, 0.0)

    def _iperf(self, host: Host, address: str, port: int, seconds: float, words: Sequence[object]) -> StreamReport:
        argv = host.enter_command(_client(address, port, seconds, words))
        before = (self.site.cpu_seconds() + _kernel_cpu_seconds(), _machine_cpu_seconds())
        text = check_output(argv, seconds + PATIENCE_SECONDS)
        after = (self.site.cpu_seconds() + _kernel_cpu_seconds(), _machine_cpu_seconds())
        return _report(text, *(end - begin for begin, end in zip(before, after, strict=True)))

    @contextmanager
    def _iperf_server(self, host: Host, address: str, port: int) -> Iterator[None]:
        """Runs a new server, because an old one may still wait for the end of the measurement before."""
        argv = ["iperf3", "--server", "--one-off", "--bind", address, "--port", port]
        with self.site.start_when_ready(host, argv, port, f"iperf3-{host.name}.log"):
            yield

    def exchanges(self, extent: Mapping[str, Any], *, new_connections: bool) -> LoadReport:
        """Measures exchanges one after the other, on one connection or on a new one each."""
        prefix = self.site.client.enter_command([])
        request = Request(path=EXCHANGE.path, answer_bytes=EXCHANGE.answer_bytes, close=new_connections)
        with LoadGenerator(self.site.folder / "loadgen.log", cpus=(), endpoints=1, prefix=prefix) as load:
            report = load.load(
                f"{self.path.target}:{ECHO_PORT}",
                request,
                connections=1,
                warmup_seconds=extent["warmup_seconds"],
                seconds=extent["seconds"],
                spin=extent["spin"],
            )
        if report.errors:
            raise ChildFailed(f"{self.name}: {report.errors} exchanges failed: {report.first_error}")
        return report


def _client(address: str, port: int, seconds: float, words: Sequence[object]) -> list[object]:
    return ["iperf3", "--client", address, "--port", port, "--json", "--time", round(seconds), *words]


def _report(text: str, cpu_seconds: float, machine_cpu_seconds: float) -> StreamReport:
    received = json.loads(text)["end"]["sum_received"]
    if not received["bytes"]:
        raise ChildFailed("iperf3 has transferred nothing")
    return StreamReport(received["bytes"], received["seconds"], cpu_seconds, machine_cpu_seconds)


def _kernel_cpu_seconds() -> float:
    """Returns the CPU time of the kernel's threads that receive packets."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().startswith("ksoftirqd/"):
                total += int((folder / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1e9


def _machine_cpu_seconds() -> float:
    """Returns the CPU time of the machine without idle time and I/O wait."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")

