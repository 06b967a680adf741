"""Rows of a run's data: one for each measure of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.article003.measures import StreamReport
from lab.bench import Row
from lab.load import LoadReport

COLUMNS = ("round", "case", "arm", "cost", "unit", "mbit", "machine_cpu_per_gb", "requests", "seconds")
CPU, MBIT, MICROSECONDS, RATE = "CPU s per GB", "Mbit/s", "µs", "per second"
# Measures of the other pod's stream, and of the rate of new connections.
DOWNLOAD, OTHER_POD = "download", "other pod"
QUANTILES = ("p10", "p50", "p99")


def has_format(path: Path) -> bool:
    """Returns true if the CSV file has rows of this experiment."""
    with path.open() as lines:
        return lines.readline().strip().split(",") == list(COLUMNS)


def of_stream(where: Row, case: str, report: StreamReport, *, whole_machine: bool) -> Iterator[Row]:
    """Yields the CPU time of a stream: of both ends, or of the whole machine if that does nothing else."""
    cost = report.per_gigabyte(report.machine_cpu_seconds if whole_machine else report.cpu_seconds)
    columns = {"seconds": report.seconds, "machine_cpu_per_gb": report.per_gigabyte(report.machine_cpu_seconds)}
    yield _row(where, f"{case} CPU", cost, CPU, mbit=report.mbit, **columns)


def of_busy_download(where: Row, case: str, reports: tuple[StreamReport, StreamReport]) -> Iterator[Row]:
    """Yields the throughput of a download, and that of the pod that sends meanwhile."""
    for name, report in zip((DOWNLOAD, OTHER_POD), reports, strict=True):
        yield _row(where, f"{case} {name}", report.mbit, MBIT, mbit=report.mbit, seconds=report.seconds)


def of_exchanges(where: Row, case: str, report: LoadReport) -> Iterator[Row]:
    """Yields quantiles of the time of an exchange, if there was one, and exchanges per second."""
    counts = {"requests": report.requests, "seconds": report.seconds}
    latencies = (report.latency_p10_us, report.latency_p50_us, report.latency_p99_us)
    for quantile, latency in zip(QUANTILES, latencies, strict=True):
        if report.requests:
            yield _row(where, f"{case} {quantile}", latency, MICROSECONDS, **counts)
    yield _row(where, f"{case} rate", report.requests / report.seconds, RATE, **counts)


def _row(where: Row, case: str, cost: float, unit: str, **columns: float) -> Row:
    """Returns a row; columns that do not apply are empty."""
    rounded = {name: round(value, 4) for name, value in columns.items()}
    return {**dict.fromkeys(COLUMNS, ""), **where, "case": case, "cost": round(cost, 4), "unit": unit, **rounded}
