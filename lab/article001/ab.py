"""ApacheBench, which the article measured with: how it is fetched, asked, and read."""

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
    """The article's words but for `-m post`: with a method in small letters most of its peers refuse every request.

    `-v 2` names the status of each answer that is not 2xx.
    """
    flags = ["-t", f"{seconds:g}", "-c", clients, "-k", "-r", "-l", "-v", "2"]
    return [*_program(), *flags, "-p", post_file, "-T", "application/json", f"http://{address}/listings"]


@dataclass(frozen=True)
class Report:
    """What ab says at its end."""

    requests: int
    seconds: float
    mean_ms: float
    p99_ms: float
    # Of answers that are not 2xx, how many of each status.
    refused: Counter[int]
    # Without an answer.
    broken: int

    def statuses(self) -> dict[str, int]:
        """In columns: 500 and 502 are what proxies answer themselves."""
        by_status = {500: self.refused[500], 502: self.refused[502]}
        other = sum(self.refused.values()) - sum(by_status.values())
        columns = {f"status_{status}": count for status, count in by_status.items()}
        return columns | {"status_other": other, "broken": self.broken}

    @property
    def rps(self) -> float:
        """Answers of the application alone: a refusal is no throughput."""
        return (self.requests - sum(self.refused.values()) - self.broken) / self.seconds


def read(text: str) -> Report:
    """From what it prints; a run that did not come to its end is an error."""
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
