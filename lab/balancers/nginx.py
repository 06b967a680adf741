"""nginx, configured as its documentation advises for keep-alive on both sides."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.balancers import BalancerTask, Placement, RunningBalancer, UnsupportedTask, listening
from lab.debian import DebianSuite

CONFIGURATION = """\
daemon off;
{user}
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {folder}/nginx.pid;
error_log stderr warn;

events {{
    worker_connections 15000;
    # All new connections at once, rather than one for each event.
    multi_accept on;
}}

http {{
    access_log off;
    tcp_nodelay on;
    # The default of 1000 requests a connection would make reconnects part of what is measured.
    keepalive_requests 1000000000;
    keepalive_timeout 60s;

{bodies}
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;

    upstream endpoints {{
{method}
{servers}
        # Idle connections that a worker keeps: as many as the largest load has.
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 60s;
    }}

    server {{
        # A queue for each worker, so that none wakes in vain.
        listen {address}{ssl} reuseport backlog=4096;
{quic}
        # Beside HTTP/1.1.
        http2 on;
        http2_max_concurrent_streams {streams};
{certificate}
        location / {{
{proxy}
        }}
    }}
}}
"""

BODIES = """\
    # Bodies go through as they come, and never by way of a file.
    client_max_body_size 0;
    client_body_buffer_size 64k;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;"""

PROXY = """\
            proxy_pass http://endpoints;
            proxy_http_version {version};
            # What the documentation of `keepalive` asks for; over HTTP/2 it is left out.
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"""
GRPC = """\
            grpc_pass grpc://endpoints;
            grpc_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"""
CERTIFICATE = """\
        ssl_certificate {chain};
        ssl_certificate_key {key};
        # What the documentation advises for handshakes: sessions are kept, by tickets and for all workers.
        ssl_session_cache shared:lab:10m;
        ssl_session_timeout 10m;"""
# As the module's documentation advises: one queue for each worker, and several datagrams for each system call, which is
# off by default. Retry and early data stay off, as by default.
QUIC = """\
        listen {address} quic reuseport;
        quic_gso on;
        quic_retry off;
        ssl_early_data off;"""
# For long-distance clients: the default allows 64 KiB of an answer in flight.
QUIC_FAR = """
        http3_stream_buffer_size 1m;"""
# nginx's default.
STREAMS = 128


def prepare() -> str:
    done = subprocess.run([*program(), "-v"], check=True, capture_output=True, text=True)
    found = re.search(r"nginx/(\d+\.\d+\.\d+)", done.stderr)
    return found.group(1) if found else done.stderr.strip()


def start(task: BalancerTask, placement: Placement) -> RunningBalancer:
    if task.routes is not None or task.cap is not None or task.splice or task.failure_policy or task.algorithm:
        raise UnsupportedTask(
            "nginx.py supports no routes and no failure policy; nginx has no queue for a cap and no splicing"
        )
    if task.endpoint_protocol == "http3" or task.removed_headers or task.in_flight is not None or not task.keep_idle:
        raise UnsupportedTask(
            "nginx has no HTTP/3 to endpoints; nginx.py supports no removed headers, no limits, only pooling"
        )
    if task.quic_congestion_control == "bbr":
        raise UnsupportedTask("nginx's QUIC supports only CUBIC")
    address = placement.choose_address()
    path = placement.folder / "nginx.conf"
    # Without a failure policy nginx must not eject servers, like the other balancers: by default one failure ejects an
    # endpoint for ten seconds, and requests fail with 502 at once if all are ejected.
    watched = "" if task.defaults else " max_fails=0"

    def write(endpoints: Sequence[str]) -> None:
        path.write_text(
            CONFIGURATION.format(
                # As root nginx would change to another user, which cannot write here.
                user="user root;" if os.geteuid() == 0 else "",
                workers=task.workers,
                folder=placement.folder,
                address=address,
                ssl=" ssl" if task.certificate else "",
                quic=_quic(task, address),
                streams=task.client_streams or STREAMS,
                certificate=_certificate(task),
                proxy=_proxy(task),
                bodies="    # Bodies are buffered as by default." if task.defaults else BODIES,
                method="        # Round robin." if task.defaults else "        least_conn;",
                servers="\n".join(f"        server {endpoint}{watched};" for endpoint in endpoints),
            )
        )

    def set_endpoints(endpoints: Sequence[str]) -> None:
        # Without nginx's commercial API a reload is the only way: new workers start, old ones finish and exit.
        write(endpoints)
        os.kill(child.pid, signal.SIGHUP)

    write(task.endpoints)
    argv = [*program(), "-c", path, "-p", placement.folder, "-e", "stderr"]
    child = placement.start("nginx", argv, listening(address))
    return RunningBalancer(address, child, set_endpoints)


def _proxy(task: BalancerTask) -> str:
    if task.endpoint_protocol == "grpc":
        return GRPC
    return PROXY.format(version="1.1" if task.endpoint_protocol == "http1" else "2")


def _quic(task: BalancerTask, address: str) -> str:
    if not task.http3:
        return "        # No HTTP/3."
    return QUIC.format(address=address) + (QUIC_FAR if task.quic_congestion_control else "")


def _certificate(task: BalancerTask) -> str:
    if task.certificate is None:
        return "        # Without TLS."
    return CERTIFICATE.format(chain=task.certificate.chain, key=task.certificate.key)


def program() -> list[str | Path]:
    """Returns the command line of nginx; installs it if it is missing."""
    return DebianSuite("forky").program("nginx", "usr/sbin/nginx")
