"""Envoy, configured as its guides for benchmarks and for transient failures advise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.balancers import BalancerTask, Placement, RunningBalancer, UnsupportedTask, listening, replace_file
from lab.certificate import Certificate
from lab.paths import CACHE, MissingRequirement

REQUIREMENT = Path(__file__).with_name("envoy-requirements.txt")
FOLDER = CACHE / "peers" / "envoy"
PROGRAM = FOLDER / "envoy" / "_bin" / "envoy"

# Envoy cannot disable its circuit breakers; its FAQ recommends this number.
UNLIMITED = 1_000_000_000
PREVIOUS_HOSTS = "envoy.retry_host_predicates.previous_hosts"
PREVIOUS_HOSTS_CONFIG = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def prepare() -> str:
    wanted = REQUIREMENT.read_text()
    stamp = FOLDER / REQUIREMENT.name
    if not stamp.is_file() or stamp.read_text() != wanted:
        _install()
        stamp.write_text(wanted)
    output = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"/(\d+\.\d+\.\d+)/", output)
    return found.group(1) if found else output.strip()


def _install() -> None:
    """Installs Envoy beside the other peers; the lab's environment has only what every run needs."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    argv += ["--target", str(FOLDER), "--requirement", str(REQUIREMENT)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingRequirement(f"cannot fetch Envoy: {done.stderr.strip()}")


def start(task: BalancerTask, placement: Placement) -> RunningBalancer:
    if (
        task.http3
        or task.endpoint_protocol == "http3"
        or task.removed_headers
        or task.in_flight is not None
        or not task.keep_idle
    ):
        raise UnsupportedTask("envoy.py supports no HTTP/3, no removed headers, no limit, and only pooled connections")
    if task.routes is not None or task.cap == "auto" or task.caps or task.replicas or task.splice:
        raise UnsupportedTask("envoy.py supports no routes; Envoy learns and divides no cap, and has no splicing")
    if task.cap is not None and task.endpoint_protocol != "http1":
        raise UnsupportedTask("Envoy limits the connections of an endpoint, which are its requests over HTTP/1.1 alone")
    if task.defaults and task.endpoint_protocol != "http1":
        raise UnsupportedTask("Envoy's default is HTTP/1.1 to endpoints")
    address = placement.choose_address()
    endpoints = placement.folder / "endpoints.json"
    _write_endpoints(endpoints, task.endpoints)
    path = placement.folder / "envoy.json"
    path.write_text(json.dumps(_bootstrap(task, address, endpoints), indent=1))
    argv = [PROGRAM, "--config-path", path, "--concurrency", task.workers]
    # Disables shared memory between generations of Envoy, because other instances may run at the same time.
    argv += ["--disable-hot-restart", "--log-level", "warning"]
    child = placement.start("envoy", argv, listening(address))
    return RunningBalancer(address, child, partial(_write_endpoints, endpoints))


def _bootstrap(task: BalancerTask, address: str, endpoints: Path) -> dict[str, Any]:
    """Returns a configuration without `admin` and access log."""
    return {
        "node": {"id": "lab", "cluster": "lab"},
        "static_resources": {"listeners": [_listener(task, address)], "clusters": [_cluster(task, endpoints)]},
    }


def _listener(task: BalancerTask, address: str) -> dict[str, Any]:
    manager = {
        "@type": _type("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "lab",
        "codec_type": "AUTO",
        # Like the other balancers: X-Forwarded-For has the client's address, and values from the client do not count.
        "use_remote_address": True,
        # The guide for benchmarks advises both, because they cost every request.
        "generate_request_id": False,
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": _type("envoy.extensions.filters.http.router.v3.Router"),
                    "dynamic_stats": False,
                },
            }
        ],
        # Same timeout as the other balancers; the default is an hour.
        "common_http_protocol_options": {"idle_timeout": "60s"},
        "http2_protocol_options": _http2(task.client_streams),
        "route_config": {
            "virtual_hosts": [{"name": "lab", "domains": ["*"], "routes": [_route(task)]}],
        },
    }
    chain: dict[str, Any] = {"filters": [{"name": "http", "typed_config": manager}]}
    if task.certificate:
        chain["transport_socket"] = _tls(task.certificate)
    return {"name": "lab", "address": _socket_address(address), "filter_chains": [chain]}


def _http2(streams: int | None) -> dict[str, Any]:
    """Returns the windows of the guide for edge proxies, and its number of streams unless the task sets one."""
    return {
        "max_concurrent_streams": streams or 100,
        "initial_stream_window_size": 64 * 1024,
        "initial_connection_window_size": 1024 * 1024,
    }


def _tls(certificate: Certificate) -> dict[str, Any]:
    files = {
        "certificate_chain": {"filename": str(certificate.chain)},
        "private_key": {"filename": str(certificate.key)},
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _type("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"),
            "common_tls_context": {"tls_certificates": [files], "alpn_protocols": ["h2", "http/1.1"]},
        },
    }


def _route(task: BalancerTask) -> dict[str, Any]:
    action: dict[str, Any] = {"cluster": "endpoints"}
    if not task.defaults:
        action["timeout"] = "60s"
    if task.failure_policy:
        # The guide for transient failures: no retry on the same host.
        action["retry_policy"] = {
            "retry_on": "5xx",
            "num_retries": task.failure_policy.attempts - 1,
            "retry_host_predicate": [{"name": PREVIOUS_HOSTS, "typed_config": {"@type": _type(PREVIOUS_HOSTS_CONFIG)}}],
            "host_selection_retry_max_attempts": 5,
        }
    return {"match": {"prefix": "/"}, "route": action}


def _cluster(task: BalancerTask, endpoints: Path) -> dict[str, Any]:
    cluster = {
        "name": "endpoints",
        "type": "EDS",
        "eds_cluster_config": {
            "eds_config": {"resource_api_version": "V3", "path_config_source": {"path": str(endpoints)}}
        },
    }
    return cluster if task.defaults else cluster | _cluster_options(task)


def _cluster_options(task: BalancerTask) -> dict[str, Any]:
    """Returns the options of a cluster besides its endpoints."""
    everything = {
        "max_connections": UNLIMITED,
        "max_pending_requests": UNLIMITED,
        "max_requests": UNLIMITED,
        "max_retries": UNLIMITED,
    }
    options: dict[str, Any] = {
        "connect_timeout": f"{task.failure_policy.connect_timeout_ms / 1000}s" if task.failure_policy else "5s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": _least_request(task)}]},
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", **everything}], **_endpoint_limit(task)},
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: {
                "@type": _type(HTTP_OPTIONS),
                "common_http_protocol_options": {"idle_timeout": "60s"},
                "explicit_http_config": _endpoint_protocol_options(task),
            }
        },
    }
    if task.failure_policy:
        options["outlier_detection"] = {
            "consecutive_5xx": task.failure_policy.failures,
            # The default of 10 % would eject none of five.
            "max_ejection_percent": 50,
        }
    return options


def _endpoint_limit(task: BalancerTask) -> dict[str, Any]:
    """Returns the circuit breaker of an endpoint; requests beyond it wait for a connection of the endpoint that they
    were assigned to.
    """
    return {"per_host_thresholds": [{"max_connections": task.cap}]} if task.cap else {}


def _endpoint_protocol_options(task: BalancerTask) -> dict[str, Any]:
    if task.endpoint_protocol == "http1":
        return {"http_protocol_options": {}}
    # The endpoint decides the number of streams of a connection.
    return {"http2_protocol_options": {"initial_connection_window_size": 1024 * 1024}}


def _least_request(task: BalancerTask) -> dict[str, Any]:
    """Returns least request with two random choices, Envoy's default; FULL_SCAN compares all endpoints."""
    return {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {
            "@type": _type("envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest"),
            "selection_method": task.algorithm or "N_CHOICES",
        },
    }


def _write_endpoints(path: Path, endpoints: Sequence[str]) -> None:
    """Writes the file that Envoy watches as its control plane; Envoy detects files that are moved into place."""
    assignment = {
        "@type": _type("envoy.config.endpoint.v3.ClusterLoadAssignment"),
        "cluster_name": "endpoints",
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket_address(each)}} for each in endpoints]}],
    }
    replace_file(path, json.dumps({"resources": [assignment]}, indent=1))


def _socket_address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _type(message: str) -> str:
    return f"type.googleapis.com/{message}"
