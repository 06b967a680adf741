"""Probes: their requests, intervals and thresholds."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.cluster.api import Object
from tests.cluster.kubelet import grpc_health

KINDS = {"startup": "startupProbe", "liveness": "livenessProbe", "readiness": "readinessProbe"}

# Runs a command in the container within a timeout; returns the failure or None.
Execute = Callable[[Sequence[str], float], str | None]
# Called with the new health and the reason.
OnChange = Callable[[bool, str], None]


@dataclass(frozen=True)
class Target:
    """Addresses and commands of a container for probes and hooks."""

    address: str
    ports: dict[str, int]
    execute: Execute


def check(handler: Object, target: Target, timeout: float) -> str | None:
    """Runs a probe once; returns the failure or None."""
    try:
        if "exec" in handler:
            return target.execute(handler["exec"]["command"], timeout)
        if "httpGet" in handler:
            return _check_http(handler["httpGet"], target, timeout)
        if "tcpSocket" in handler:
            action = handler["tcpSocket"]
            socket.create_connection((action.get("host") or target.address, _port(action, target)), timeout).close()
            return None
        if "grpc" in handler:
            action = handler["grpc"]
            return grpc_health.serves(target.address, action["port"], action.get("service") or "", timeout)
        return f"unsupported probe: {', '.join(handler)}"
    except (OSError, http.client.HTTPException, KeyError) as error:
        return str(error) or type(error).__name__


class Probe(threading.Thread):
    """Thread that probes a running container and reports changes. The initial health may be unknown."""

    def __init__(self, spec: Object, target: Target, on_change: OnChange, *, healthy: bool | None) -> None:
        super().__init__(daemon=True)
        self._spec, self._target, self._on_change = spec, target, on_change
        self._healthy = healthy
        self._ended = threading.Event()

    def run(self) -> None:
        spec = self._spec
        threshold = {True: spec.get("successThreshold", 1), False: spec.get("failureThreshold", 3)}
        streak, last = 0, None
        if self._ended.wait(spec.get("initialDelaySeconds", 0)):
            return
        while True:
            reason = check(spec, self._target, spec.get("timeoutSeconds", 1))
            if self._ended.is_set():
                return
            answer = reason is None
            streak = streak + 1 if answer == last else 1
            last = answer
            if streak >= threshold[answer] and answer != self._healthy:
                self._healthy = answer
                self._on_change(answer, reason or "")
            if self._ended.wait(spec.get("periodSeconds", 10)):
                return

    def end(self) -> None:
        self._ended.set()


def _check_http(get: Object, target: Target, timeout: float) -> str | None:
    host, port = get.get("host") or target.address, _port(get, target)
    if get.get("scheme", "HTTP").upper() == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        headers = {"User-Agent": "kube-probe/1.36", "Accept": "*/*", "Connection": "close"}
        headers |= {header["name"]: header["value"] for header in get.get("httpHeaders", [])}
        connection.request("GET", get.get("path") or "/", headers=headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    return None if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"


def _port(action: Object, target: Target) -> int:
    port = action["port"]
    return port if isinstance(port, int) else target.ports[port]
