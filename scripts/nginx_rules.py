"""Compares the table of snippets and answers (tests/src/nginx_rules.txt) with an nginx:

    python3 scripts/nginx_rules.py

Each snippet is in the location `/` of a server, as ingress-nginx writes it. Needs `nginx`. Differences are printed, and the
exit code is 1.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "tests/src/nginx_rules.txt"
START_SECONDS = 10.0
CONFIG = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
  access_log off; port_in_redirect off; server_names_hash_bucket_size 128;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {servers}
}}
"""
SERVER = """
  server {{
    listen unix:{folder}/socket; server_name {hosts};
    location /api {{ {forward} }}
    location /new {{ {forward} }}
    location / {{ {snippet} {forward} }}
  }}
"""


class Endpoint(BaseHTTPRequestHandler):
    """Answers every request, and keeps its path and query."""

    targets: list[str] = []

    def do_GET(self) -> None:
        self.targets.append(self.path)
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    cases = table()
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    forward = f"proxy_pass http://127.0.0.1:{endpoint.server_port};"
    with tempfile.TemporaryDirectory() as folder:
        servers = ""
        for number, (snippet, requests) in enumerate(cases):
            named = {host(request, number) for request in requests}
            hosts = " ".join(sorted({f"c{number}.test", *named}))
            servers += SERVER.format(folder=folder, hosts=hosts, forward=forward, snippet=snippet)
        config = Path(folder, "nginx.conf")
        config.write_text(CONFIG.format(folder=folder, servers=servers))
        with subprocess.Popen(["nginx", "-c", config, "-p", folder]) as nginx:
            try:
                differences = compare(cases, Path(folder, "socket"))
            finally:
                nginx.terminate()
    for difference in differences:
        print(difference)
    print(f"{sum(len(requests) for _, requests in cases)} requests, {len(differences)} differences")
    sys.exit(1 if differences else 0)


def table() -> list[tuple[str, list[str]]]:
    cases: list[tuple[str, list[str]]] = []
    for line in TABLE.read_text().splitlines():
        if line.startswith("  "):
            cases[-1][1].append(line.strip())
        elif line and not line.startswith("#"):
            cases.append((line, []))
    return cases


def host(request: str, number: int) -> str:
    named = re.search(r" HOST:(\S+)", request)
    return named[1] if named else f"c{number}.test"


def compare(cases: list[tuple[str, list[str]]], path: Path) -> list[str]:
    until = time.monotonic() + START_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    differences = []
    for number, (snippet, requests) in enumerate(cases):
        for line in requests:
            request, expected = line.split(" -> ")
            found = answer(request, host(line, number), path)
            if found != expected.replace("HOST", host(line, number)):
                differences.append(f"{snippet}\n  {request}: {found}")
    return differences


def answer(request: str, to: str, path: Path) -> str:
    method, target, *words = request.split(" ")
    fields = [word.replace(":", ": ", 1) for word in words if not word.startswith("HOST:")]
    lines = [f"{method} {target} HTTP/1.1", f"Host: {to}", *fields, "Content-Length: 0", "Connection: close", "", ""]
    Endpoint.targets.clear()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall("\r\n".join(lines).encode())
        response = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    location = re.search(r"\r\nLocation: (.*)\r\n", response)
    detail = [location[1]] if location else Endpoint.targets[-1:]
    return " ".join([response.split(" ")[1], *detail])


if __name__ == "__main__":
    main()
