"""HAProxy, configured as its manual advises a proxy of HTTP/1.1 with keep-alive on both sides."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab import network
from lab.balancers import Running, Task, Unsupported
from lab.child import Child, wait_until
from lab.debian import Suite

CONFIGURATION = """\
global
    nbthread {workers}
    # Two descriptors a connection would exceed what an ordinary machine allows; the lab's endpoints need few.
    maxconn 12000
    no strict-limits

defaults
    mode http
    # Idle connections to endpoints are shared by all clients.
    http-reuse always
    option forwardfor
    {splice}
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-request 10s
    timeout http-keep-alive 60s
    timeout queue 5s

frontend lab
    bind {address}
    default_backend endpoints

backend endpoints
    balance leastconn
{servers}
"""


def prepare() -> str:
    done = subprocess.run([*_program(), "-v"], check=True, capture_output=True, text=True)
    found = re.search(r"version (\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if found else done.stdout.strip()


def start(task: Task, folder: Path, cpus: Sequence[int]) -> Running:
    if task.routes is not None:
        raise Unsupported("haproxy.py writes no routes")
    address = f"127.0.0.1:{network.free_port()}"
    path = folder / "haproxy.cfg"
    path.write_text(
        CONFIGURATION.format(
            workers=task.workers,
            splice="option splice-auto" if task.splice else "# Bodies are copied.",
            address=address,
            servers="\n".join(_server(number, endpoint, task.cap) for number, endpoint in enumerate(task.endpoints)),
        )
    )
    child = Child([*_program(), "-db", "-f", path], folder / "haproxy.log", cpus=cpus)
    wait_until(lambda: network.accepts(address), child, "HAProxy's listener")
    return Running(address, child)


def _server(number: int, endpoint: str, cap: int | None) -> str:
    limit = f" maxconn {cap}" if cap else ""
    return f"    server endpoint-{number} {endpoint}{limit}"


def _program() -> list[str | Path]:
    return Suite("forky").program("haproxy", "usr/sbin/haproxy")
