"""ApacheBench, the article's load generator: its installation, its command line and the parser of its report."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lab.child import ChildFailed
from lab.debian import DebianSuite

NOT_2XX = re.compile(r"Response code not 2xx \((\d+)\)")


def prepare() -> str:
    output = subprocess.run([*_program(), "-V"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", output)
    return found.group(1) if found else output.strip()


def command(address: str, clients: int, seconds: float, post_file: Path) -> list[object]:
    """Returns the article's command without `-m post`, because most peers refuse a method in lower case.

    `-v 2` prints the status of each answer that is not 2xx.
    """
    flags = ["-t", f"{seconds:g}", "-c", clients, "-k", "-r", "-l", "-v", "2"]
    return [*_program(), *flags, "-p", post_file, "-T", "application/json", f"http://{address}/listings"]


@dataclass(frozen=True)
class Report:
    """Report of ab."""

    requests: int
    seconds: float
    mean_ms: float
    p99_ms: float
    # Number of answers that are not 2xx, by status.
    refused: Counter[int]
    # Requests without an answer.
    broken: int

    def statuses(self) -> dict[str, int]:
        """Returns columns by status; proxies themselves answer 500 and 502."""
        by_status = {500: self.refused[500], 502: self.refused[502]}
        other = sum(self.refused.values()) - sum(by_status.values())
        columns = {f"status_{status}": count for status, count in by_status.items()}
        return columns | {"status_other": other, "broken": self.broken}

    @property
    def rps(self) -> float:
        """Answers of the application a second, without refusals."""
        return (self.requests - sum(self.refused.values()) - self.broken) / self.seconds


def read(text: str) -> Report:
    """Parses the output of ab; raises ChildFailed if the run is incomplete."""
    refused = Counter(int(status) for status in NOT_2XX.findall(text))
    return Report(
        requests=int(_number(text, r"Complete requests:\s+(\d+)")),
        seconds=_number(text, r"Time taken for tests:\s+([\d.]+)"),
        mean_ms=_number(text, r"Time per request:\s+([\d.]+) \[ms\] \(mean\)"),
        p99_ms=_number(text, r"^\s+99%\s+(\d+)"),
        refused=refused,
        broken=int(_number(text, r"Failed requests:\s+(\d+)")),
    )


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise ChildFailed(f"ab did not finish: {text.strip()[-500:]}")
    return float(found.group(1))


def _program() -> list[str | Path]:
    return DebianSuite("forky").program("apache2-utils", "usr/bin/ab")
