"""Caddy, configured as the reverse proxy of its documentation with several endpoints."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import certificate
from lab.balancers import BalancerTask, Placement, RunningBalancer, UnsupportedTask, listening
from lab.debian import DebianSuite


def prepare() -> str:
    output = subprocess.run([*_program(), "version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+\.\d+\.\d+)", output)
    return found.group(1) if found else output.strip()


def start(task: BalancerTask, placement: Placement) -> RunningBalancer:
    if (
        task.routes is not None
        or task.cap is not None
        or task.splice
        or task.failure_policy
        or task.in_flight is not None
    ):
        raise UnsupportedTask(
            "caddy.py supports no routes and no failure policy; Caddy has no queue for a cap and no splicing"
        )
    if task.endpoint_protocol != "http1" or task.client_streams or task.removed_headers or not task.keep_idle:
        raise UnsupportedTask("caddy.py supports only pooled HTTP/1.1 to endpoints, default streams and all headers")
    if task.quic_congestion_control == "bbr":
        raise UnsupportedTask("Caddy's QUIC supports only CUBIC")
    address = placement.choose_address()
    path = placement.folder / "caddy.json"
    path.write_text(json.dumps(_configuration(address, task), indent=1))
    # Go has no workers; this is the number of parallel threads. Caddy keeps state below HOME.
    argv = ["env", f"GOMAXPROCS={task.workers}", f"HOME={placement.folder}", *_program(), "run", "--config", path]
    child = placement.start("caddy", argv, listening(address))
    return RunningBalancer(address, child, _refuse_endpoints)


def _refuse_endpoints(_: Sequence[str]) -> None:
    raise UnsupportedTask("caddy.py cannot change its endpoints")


def _configuration(address: str, task: BalancerTask) -> dict[str, Any]:
    """Returns a configuration without the admin API, automatic certificates and the access log."""
    proxy = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": endpoint} for endpoint in task.endpoints],
        # By load, like the other balancers.
        "load_balancing": {"selection_policy": {"policy": task.algorithm or "least_conn"}},
        # The default of 32 idle connections for each endpoint is too low for some loads.
        "transport": {"protocol": "http", "keep_alive": {"max_idle_conns_per_host": 1024}},
    }
    server = {"listen": [address], "routes": [{"handle": [proxy]}], "automatic_https": {"disable": True}}
    apps: dict[str, Any] = {"http": {"servers": {"lab": server}}}
    if task.certificate:
        pair = {"certificate": str(task.certificate.chain), "key": str(task.certificate.key)}
        apps["tls"] = {"certificates": {"load_files": [pair]}}
        # Clients without SNI get the certificate too. HTTP/3 uses the UDP port of the same number.
        policy = {"default_sni": certificate.HOST}
        server |= {"tls_connection_policies": [policy], "protocols": ["h1", "h2", *(["h3"] if task.http3 else [])]}
    return {"admin": {"disabled": True}, "apps": apps}


def _program() -> list[str | Path]:
    return DebianSuite("forky").program("caddy", "usr/bin/caddy")
