"""Sheave, by its command line and a directory of Kubernetes objects, with everything on that is on by default."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import indent

from lab.balancers import Placement, Running, Task, Unsupported, replace_file
from lab.certificate import HOST, Certificate
from lab.paths import binary

GATEWAY = """\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: sheave
spec:
  controllerName: sheave.dev/gateway
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: lab
spec:
  gatewayClassName: sheave
  addresses:
  - type: IPAddress
    value: {host}
  listeners:
  - name: http
    protocol: {protocol}
    port: {port}
{tls}---
apiVersion: v1
kind: Service
metadata:
  name: endpoints
spec:
  ports:
  - name: http
    port: 80
{speech}"""

POLICIES = """\
---
apiVersion: sheave.dev/v1alpha1
kind: ClientPolicy
metadata:
  name: lab
spec:
  targetRefs:
  - group: gateway.networking.k8s.io
    kind: Gateway
    name: lab
  limits:
    bodyBytes: 1073741824
  timeouts:
    head: 10s
    body: 30s
{streams}{http3}---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata:
  name: endpoints
spec:
  targetRefs:
  - kind: Service
    name: endpoints
  algorithm: {algorithm}
  timeouts:
    connect: {connect_timeout_ms}ms
    request: 60s
{cap}{guard}
"""

TLS = """\
    tls:
      certificateRefs:
      - name: lab
"""

SECRET = """\
---
apiVersion: v1
kind: Secret
metadata:
  name: lab
type: kubernetes.io/tls
stringData:
  tls.crt: |
{chain}
  tls.key: |
{key}
"""

STREAMS = """\
  http2:
    maxConcurrentStreams: {streams}
"""

HTTP3 = """\
  http3:
    enabled: true
    congestionControl: {congestion_control}
"""

# Of the Service's port.
HTTP2 = """\
    appProtocol: kubernetes.io/h2c
"""
HTTP3_ENDPOINTS = """\
    appProtocol: sheave.dev/h3
"""

TRUST = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata:
  name: endpoints
spec:
  targetRefs:
  - group: ""
    kind: Service
    name: endpoints
  validation:
    hostname: {host}
    caCertificateRefs:
    - group: ""
      kind: ConfigMap
      name: trusted
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: trusted
data:
  ca.crt: |
{authority}
"""

CAP = """\
  maxInFlightPerEndpoint: {cap}
  queue:
    maxRequests: {queue}
    timeout: 5s
"""

QUEUE = 1024

# The rest is as it is by default.
GUARD = """\
  retry:
    attempts: {attempts}
    statuses: [500, 502, 503, 504]
  health:
    passive:
      consecutiveFailures: {failures}
"""

ENDPOINT = """\
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: endpoint-{number}
  labels:
    kubernetes.io/service-name: endpoints
addressType: IPv4
ports:
- name: http
  port: {port}
endpoints:
- addresses: ["{host}"]
"""

ROUTE = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: route-{number}
spec:
  parentRefs:
  - name: lab
  hostnames: {hostnames}
  rules:
  - matches:
    - path:
        type: PathPrefix
        value: {path}
{filters}    backendRefs:
    - name: endpoints
      port: 80
"""

HIDING = """\
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier:
        remove: {names}
"""

# Its backends speak HTTP/2 without being told.
GRPC_ROUTE = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata:
  name: route-0
spec:
  parentRefs:
  - name: lab
  rules:
  - backendRefs:
    - name: endpoints
      port: 80
"""

# Routes are spread over hosts and paths. This one, h43.lab.example/p57, is among them however few there are.
HOSTS = 100
WANTED_ROUTE = 5743


def prepare() -> str:
    done = subprocess.run([binary("sheave"), "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
    return found.group(0) if found else done.stdout.strip()


def start(task: Task, placement: Placement) -> Running:
    if task.in_flight is not None or not task.pooled:
        raise Unsupported("sheave.py limits endpoints one by one, and leaves it to Sheave what connections are kept")
    ready = placement.folder / "ready.json"
    config = _write_config(task, placement)
    argv = [placement.program or binary("sheave"), "serve", "--config", config]
    argv += ["--workers", str(task.workers), "--admin", "127.0.0.1:0", "--ready-file", ready]
    child = placement.start("sheave", argv, lambda _: ready.is_file(), seconds=60)
    said = json.loads(ready.read_text())
    set_endpoints = partial(_write_endpoints, config / "endpoints.yaml")
    return Running(said["listeners"][0]["address"], child, set_endpoints, said["admin"])


def _write_config(task: Task, placement: Placement) -> Path:
    config = placement.folder / "config"
    config.mkdir()
    gateway = GATEWAY.format(
        host=placement.host,
        port=placement.port,
        protocol="HTTPS" if task.certificate else "HTTP",
        tls=TLS if task.certificate else "",
        speech={"http2": HTTP2, "http3": HTTP3_ENDPOINTS}.get(task.speaks, ""),
    )
    (config / "gateway.yaml").write_text(gateway + ("" if task.defaults else _policies(task)))
    if task.certificate:
        (config / "secret.yaml").write_text(_secret(task.certificate))
    if task.trusted:
        (config / "trust.yaml").write_text(_trust(task.trusted))
    (config / "routes.yaml").write_text(GRPC_ROUTE if task.speaks == "grpc" else _routes(task))
    _write_endpoints(config / "endpoints.yaml", task.endpoints)
    return config


def _policies(task: Task) -> str:
    cap = CAP.format(cap=task.cap, queue=QUEUE if task.queue is None else task.queue) if task.cap else ""
    return POLICIES.format(
        streams=STREAMS.format(streams=task.client_streams) if task.client_streams else "",
        http3=HTTP3.format(congestion_control=(task.quic_congestion_control or "cubic").title()) if task.http3 else "",
        algorithm=task.algorithm or "LeastLoad",
        connect_timeout_ms=task.guard.connect_timeout_ms if task.guard else 5000,
        cap=cap,
        guard=GUARD.format(attempts=task.guard.attempts, failures=task.guard.failures) if task.guard else "",
    )


def _secret(certificate: Certificate) -> str:
    return SECRET.format(
        chain=indent(certificate.chain.read_text().strip(), " " * 4),
        key=indent(certificate.key.read_text().strip(), " " * 4),
    )


def _trust(certificate: Certificate) -> str:
    return TRUST.format(host=HOST, authority=indent(certificate.authority.read_text().strip(), " " * 4))


def _write_endpoints(path: Path, endpoints: Sequence[str]) -> None:
    replace_file(path, "".join(_endpoint(number, address) for number, address in enumerate(endpoints)))


def _endpoint(number: int, address: str) -> str:
    host, _, port = address.rpartition(":")
    return ENDPOINT.format(number=number, host=host, port=port)


def _routes(task: Task) -> str:
    filters = HIDING.format(names=json.dumps(task.hidden)) if task.hidden else ""
    if task.routes is None:
        return ROUTE.format(number=0, hostnames="[]", path="/", filters=filters)
    numbers = ((WANTED_ROUTE + offset) % max(task.routes, WANTED_ROUTE + 1) for offset in range(task.routes))
    return "".join(
        ROUTE.format(
            number=number,
            hostnames=f"[h{number % HOSTS}.lab.example]",
            path=f"/p{number // HOSTS}",
            filters=filters,
        )
        for number in numbers
    )
