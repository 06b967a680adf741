"""Directory that `sheave serve --config` watches: a Gateway, a route, a Service and its endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
  name: demo
spec:
  gatewayClassName: sheave
  addresses:
  - type: IPAddress
    value: 127.0.0.1
  listeners:
  - name: http
    protocol: HTTP
    port: 0 # any free port
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: app
spec:
  parentRefs:
  - name: demo
  rules:
  - backendRefs:
    - name: app
      port: 80
---
apiVersion: v1
kind: Service
metadata:
  name: app
spec:
  ports:
  - name: http
    port: 80
"""

SLICE = """\
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: app-{port}
  labels:
    kubernetes.io/service-name: app
addressType: IPv4
ports:
- name: http
  port: {port}
endpoints:
- addresses: ["127.0.0.1"]
  conditions:
    ready: true
"""


def write_gateway(folder: Path) -> None:
    (folder / "gateway.yaml").write_text(GATEWAY)


def write_endpoints(folder: Path, ports: Iterable[int]) -> None:
    """Replaces the whole file atomically, as every editor of a watched directory should."""
    new = folder / ".endpoints.yaml"
    new.write_text("".join(SLICE.format(port=port) for port in ports))
    new.replace(folder / "endpoints.yaml")
