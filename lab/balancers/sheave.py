"""Sheave, configured by its command line and a directory of Kubernetes objects, with all defaults on."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import indent

from lab.balancers import BalancerTask, Placement, RunningBalancer, UnsupportedTask, replace_file
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
{app_protocol}"""

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
{cap}{failure_policy}
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

# Line of the Service's port.
HTTP2 = """\
    appProtocol: kubernetes.io/h2c
"""
HTTP3_ENDPOINTS = """\
    appProtocol: sheave.dev/h3
"""

ENDPOINT_TLS_POLICY = """\
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

# All other settings are defaults.
FAILURE_POLICY = """\
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

HEADER_FILTER = """\
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier:
        remove: {names}
"""

# Of the Service, without a route of its own.
XDS_TARGET = "xds:///endpoints.default:80"

# Its backends use HTTP/2 without further configuration.
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

# Routes are spread over hosts and paths. Clients request this one, h43.lab.example/p57, which always exists.
HOSTS = 100
REQUESTED_ROUTE = 5743


def prepare() -> str:
    done = subprocess.run([binary("sheave"), "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+\.\d+\S*", done.stdout)
    return found.group(0) if found else done.stdout.strip()


def start(task: BalancerTask, placement: Placement) -> RunningBalancer:
    if task.in_flight is not None or not task.keep_idle:
        raise UnsupportedTask(
            "sheave.py supports only limits of each endpoint, and Sheave manages idle connections itself"
        )
    if task.caps:
        raise UnsupportedTask("sheave.py supports one limit for all endpoints")
    ready = placement.folder / "ready.json"
    config = _write_config(task, placement)
    argv = [placement.program or binary("sheave"), "serve", "--config", config]
    argv += ["--workers", str(task.workers), "--admin", "127.0.0.1:0", "--ready-file", ready]
    argv += _replica_arguments(task)
    if task.xds_certificates is not None:
        argv += ["--xds", f"{placement.host}:0", "--xds-certs", task.xds_certificates]
    child = placement.start("sheave", argv, lambda _: ready.is_file(), seconds=60)
    addresses = json.loads(ready.read_text())
    set_endpoints = partial(_write_endpoints, config / "endpoints.yaml")
    listener = addresses["listeners"][0]["address"]
    return RunningBalancer(listener, child, set_endpoints, addresses["admin"], addresses.get("xds"))


def xds_bootstrap(server: str, certificates: Path) -> str:
    """Returns the bootstrap file of a client of the xDS server, which has the certificate in this folder."""
    argv = [binary("sheave"), "xds", "bootstrap", "--server", server, "--certs", certificates]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _replica_arguments(task: BalancerTask) -> list[str]:
    if task.replicas is None:
        return []
    arguments = ["--replicas", ",".join(task.replicas.members), "--replica", task.replicas.member]
    return [*arguments, "--lease-slots"] if task.replicas.lease_slots else arguments


def _write_config(task: BalancerTask, placement: Placement) -> Path:
    config = placement.folder / "config"
    config.mkdir()
    gateway = GATEWAY.format(
        host=placement.host,
        port=placement.port,
        protocol="HTTPS" if task.certificate else "HTTP",
        tls=TLS if task.certificate else "",
        app_protocol={"http2": HTTP2, "http3": HTTP3_ENDPOINTS}.get(task.endpoint_protocol, ""),
    )
    (config / "gateway.yaml").write_text(gateway + ("" if task.defaults else _policies(task)))
    if task.certificate:
        (config / "secret.yaml").write_text(_secret(task.certificate))
    if task.endpoint_ca:
        (config / "trust.yaml").write_text(_endpoint_tls_policy(task.endpoint_ca))
    (config / "routes.yaml").write_text(GRPC_ROUTE if task.endpoint_protocol == "grpc" else _routes(task))
    _write_endpoints(config / "endpoints.yaml", task.endpoints)
    return config


def _policies(task: BalancerTask) -> str:
    cap = CAP.format(cap=task.cap, queue=QUEUE if task.queue is None else task.queue) if task.cap else ""
    return POLICIES.format(
        streams=STREAMS.format(streams=task.client_streams) if task.client_streams else "",
        http3=HTTP3.format(congestion_control=(task.quic_congestion_control or "cubic").title()) if task.http3 else "",
        algorithm=task.algorithm or "LeastLoad",
        connect_timeout_ms=task.failure_policy.connect_timeout_ms if task.failure_policy else 5000,
        cap=cap,
        failure_policy=FAILURE_POLICY.format(
            attempts=task.failure_policy.attempts, failures=task.failure_policy.failures
        )
        if task.failure_policy
        else "",
    )


def _secret(certificate: Certificate) -> str:
    return SECRET.format(
        chain=indent(certificate.chain.read_text().strip(), " " * 4),
        key=indent(certificate.key.read_text().strip(), " " * 4),
    )


def _endpoint_tls_policy(certificate: Certificate) -> str:
    return ENDPOINT_TLS_POLICY.format(host=HOST, authority=indent(certificate.authority.read_text().strip(), " " * 4))


def _write_endpoints(path: Path, endpoints: Sequence[str]) -> None:
    replace_file(path, "".join(_endpoint(number, address) for number, address in enumerate(endpoints)))


def _endpoint(number: int, address: str) -> str:
    host, _, port = address.rpartition(":")
    return ENDPOINT.format(number=number, host=host, port=port)


def _routes(task: BalancerTask) -> str:
    filters = HEADER_FILTER.format(names=json.dumps(task.removed_headers)) if task.removed_headers else ""
    if task.routes is None:
        return ROUTE.format(number=0, hostnames="[]", path="/", filters=filters)
    numbers = ((REQUESTED_ROUTE + offset) % max(task.routes, REQUESTED_ROUTE + 1) for offset in range(task.routes))
    return "".join(
        ROUTE.format(
            number=number,
            hostnames=f"[h{number % HOSTS}.lab.example]",
            path=f"/p{number // HOSTS}",
            filters=filters,
        )
        for number in numbers
    )
