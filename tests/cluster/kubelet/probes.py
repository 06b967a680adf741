"""Probes: what a container is asked, how often, and from how many answers a result is made."""

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

# A command in the container, and how long it may take -> why it failed, or None.
Execute = Callable[[Sequence[str], float], str | None]
# Whether it is well, and why not.
Told = Callable[[bool, str], None]


@dataclass(frozen=True)
class Target:
    """A container as probes and hooks find it."""

    address: str
    ports: dict[str, int]
    execute: Execute


def ask(handler: Object, target: Target, timeout: float) -> str | None:
    """Asks once: why the answer is no, or None if it is yes."""
    try:
        if "exec" in handler:
            return target.execute(handler["exec"]["command"], timeout)
        if "httpGet" in handler:
            return _ask_http(handler["httpGet"], target, timeout)
        if "tcpSocket" in handler:
            place = handler["tcpSocket"]
            socket.create_connection((place.get("host") or target.address, _port(place, target)), timeout).close()
            return None
        if "grpc" in handler:
            place = handler["grpc"]
            return grpc_health.serves(target.address, place["port"], place.get("service") or "", timeout)
        return f"unsupported probe: {', '.join(handler)}"
    except (OSError, http.client.HTTPException, KeyError) as error:
        return str(error) or type(error).__name__


class Probe(threading.Thread):
    """Asks for as long as the container runs, and tells when the result changes. At first it may be known by nobody."""

    def __init__(self, asked: Object, target: Target, told: Told, *, well: bool | None) -> None:
        super().__init__(daemon=True)
        self._asked, self._target, self._told = asked, target, told
        self._well = well
        self._ended = threading.Event()

    def run(self) -> None:
        asked = self._asked
        wanted = {True: asked.get("successThreshold", 1), False: asked.get("failureThreshold", 3)}
        streak, last = 0, None
        if self._ended.wait(asked.get("initialDelaySeconds", 0)):
            return
        while True:
            reason = ask(asked, self._target, asked.get("timeoutSeconds", 1))
            if self._ended.is_set():
                return
            answer = reason is None
            streak = streak + 1 if answer == last else 1
            last = answer
            if streak >= wanted[answer] and answer != self._well:
                self._well = answer
                self._told(answer, reason or "")
            if self._ended.wait(asked.get("periodSeconds", 10)):
                return

    def end(self) -> None:
        self._ended.set()


def _ask_http(get: Object, target: Target, timeout: float) -> str | None:
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


def _port(place: Object, target: Target) -> int:
    port = place["port"]
    return port if isinstance(port, int) else target.ports[port]
