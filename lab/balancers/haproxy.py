"""HAProxy, configured as its manual advises for keep-alive on both sides."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.balancers import BalancerTask, Placement, RunningBalancer, UnsupportedTask, listening
from lab.debian import DebianSuite

CONFIGURATION = """\
global
    nbthread {workers}
    # Two descriptors a connection would exceed what an ordinary machine allows; the lab's endpoints need few.
    maxconn 12000
    no strict-limits
    # Endpoints come and go by the runtime API; a reload would close the clients' connections.
    stats socket unix@{socket} level admin
{streams}
{quic}

defaults
    mode http
{reuse}
    # X-Forwarded-For, as the others add it.
    option forwardfor
    {splice}
    # As long as the others, of which the manual wants every one set.
    timeout connect {connect_timeout_ms}ms
    timeout client 60s
    timeout server 60s
    timeout http-request 10s
    timeout http-keep-alive 60s
    timeout queue 5s

frontend lab
    # A client that begins with HTTP/2 is understood.
    bind {address}{tls}
{bind_quic}
    default_backend endpoints

backend endpoints
    # Unless it is asked otherwise by load, as the others choose.
    balance {algorithm}
{failure_policy}
{servers}
"""

# Relative to the folder of the run.
SOCKET = "haproxy.sock"

# The manual's default is 100. The limits of endpoints apply as well.
STREAMS = """\
    tune.h2.fe.max-concurrent-streams {streams}
    tune.h2.be.max-concurrent-streams {streams}"""

# For low latency and high bandwidth the manual advises to disable QUIC pacing, which costs CPU.
QUIC = "    tune.quic.disable-tx-pacing"
# For long-distance clients pacing stays, and BBR needs two options.
QUIC_FAR = {"cubic": "    # QUIC defaults.", "bbr": "    expose-experimental-directives"}
BIND_QUIC = "    bind quic4@{address} ssl crt {chain} alpn h3{congestion}"
# The default window of 480 KiB allows 39 Mbit/s at 100 ms.
CONGESTION = " quic-cc-algo {algorithm}(16m)"

# All clients share idle connections to endpoints. The manual recommends this for endpoints that never close them early,
# as here. With the default, each client's first request would open a connection.
REUSE = "    http-reuse always"

# From the manual's examples: a request to an unreachable server is redispatched.
REDISPATCH = "    option redispatch"

# `observe` requires the check, which also decides when a server returns.
FAILURE_POLICY = """\
    option httpchk GET /b/100
    retries {retries}
    # At once and elsewhere; a server that answered 500 has the fewest connections and would be chosen again.
    option redispatch 1
    retry-on all-retryable-errors"""
CHECKED_SERVER = " check inter 2s fastinter 500ms observe layer7 error-limit {failures} on-error mark-down"


def prepare() -> str:
    done = subprocess.run([*_program(), "-v"], check=True, capture_output=True, text=True)
    found = re.search(r"version (\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if found else done.stdout.strip()


def start(task: BalancerTask, placement: Placement) -> RunningBalancer:
    if task.routes is not None or task.cap == "auto" or task.queue is not None or task.in_flight is not None:
        raise UnsupportedTask("haproxy.py supports no routes; HAProxy learns no cap and has no queue limit")
    if not task.keep_idle or task.replicas:
        raise UnsupportedTask("haproxy.py supports only shared idle connections; HAProxy divides no cap")
    if task.endpoint_protocol == "http3" or task.removed_headers:
        raise UnsupportedTask("HAProxy 3.2 has no HTTP/3 to servers, and haproxy.py supports no removed headers")
    address = placement.choose_address()
    path = placement.folder / "haproxy.cfg"
    servers = [_server(endpoint, task) for endpoint in task.endpoints]
    path.write_text(
        CONFIGURATION.format(
            workers=task.workers,
            socket=SOCKET,
            splice="option splice-auto" if task.splice else "# Bodies are copied.",
            streams=STREAMS.format(streams=task.client_streams) if task.client_streams else "    # HTTP/2 defaults.",
            quic=_quic(task),
            bind_quic=_bind_quic(task, address),
            address=address,
            # HAProxy finds the key beside the certificate.
            tls=f" ssl crt {task.certificate.chain} alpn h2,http/1.1" if task.certificate else "",
            algorithm=task.algorithm or "leastconn",
            connect_timeout_ms=task.failure_policy.connect_timeout_ms if task.failure_policy else 5000,
            reuse="    # Idle connections are shared as by default." if task.defaults else REUSE,
            failure_policy=_failure_policy(task),
            servers="\n".join(f"    server {server}" for server in servers),
        )
    )
    # A socket path has at most about a hundred bytes, and the folder's path may be longer, so it is relative.
    child = placement.start("haproxy", [*_program(), "-db", "-C", placement.folder, "-f", path], listening(address))
    return RunningBalancer(address, child, ServerUpdates(placement.folder, task).set)


def _quic(task: BalancerTask) -> str:
    if not task.http3:
        return "    # No QUIC."
    return QUIC_FAR[task.quic_congestion_control] if task.quic_congestion_control else QUIC


def _bind_quic(task: BalancerTask, address: str) -> str:
    if not task.http3 or task.certificate is None:
        return "    # No HTTP/3."
    algorithm = task.quic_congestion_control
    congestion = CONGESTION.format(algorithm=algorithm) if algorithm else ""
    return BIND_QUIC.format(address=address, chain=task.certificate.chain, congestion=congestion)


def _failure_policy(task: BalancerTask) -> str:
    if task.defaults:
        return REDISPATCH
    return (
        FAILURE_POLICY.format(retries=task.failure_policy.attempts - 1)
        if task.failure_policy
        else "    # Servers are not watched."
    )


def _server(endpoint: str, task: BalancerTask) -> str:
    """Returns the arguments of a `server` line and of `add server`. The address is the server's name."""
    cap = task.caps.get(endpoint, task.cap)
    limit = f" maxconn {cap}" if cap else ""
    failure_policy = CHECKED_SERVER.format(failures=task.failure_policy.failures) if task.failure_policy else ""
    protocol = "" if task.endpoint_protocol == "http1" else " proto h2"
    return f"{endpoint} {endpoint}{protocol}{limit}{failure_policy}"


class ServerUpdates:
    """Changes the servers of a running HAProxy as its management guide advises: add and enable, or maintenance."""

    def __init__(self, folder: Path, task: BalancerTask) -> None:
        self._folder = folder
        self._task = task
        self._known = set(task.endpoints)

    def set(self, endpoints: Sequence[str]) -> None:
        for endpoint in endpoints:
            if endpoint not in self._known:
                self._command(f"add server endpoints/{_server(endpoint, self._task)}", "New server registered.")
                if self._task.failure_policy:
                    self._command(f"enable health endpoints/{endpoint}")
                self._known.add(endpoint)
            self._command(f"set server endpoints/{endpoint} state ready")
        for endpoint in self._known.difference(endpoints):
            # Requests in flight continue; new ones go elsewhere.
            self._command(f"set server endpoints/{endpoint} state maint")

    def _command(self, command: str, expected: str = "") -> None:
        folder = os.open(self._folder, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(5)
                connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
                connection.sendall(f"{command}\n".encode())
                answer = connection.makefile().read().strip()
        finally:
            os.close(folder)
        if answer != expected:
            raise RuntimeError(f"HAProxy answers to `{command}`: {answer}")


def _program() -> list[str | Path]:
    return DebianSuite("forky").program("haproxy", "usr/sbin/haproxy")
