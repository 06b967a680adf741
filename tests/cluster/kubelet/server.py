"""Server for logs, commands and resource metrics, which only the control plane may request, over TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.cluster import certificates
from tests.cluster.kubelet import commands, logs
from tests.cluster.kubelet.pod import Pod
from tests.cluster.layout import Node

WANTED_CLIENT = "kube-apiserver-kubelet-client"

# Maps (namespace, name) to a pod of this node.
Find = Callable[[str, str], Pod | None]


class RequestRefused(Exception):
    """A rejected request with its status and reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, node: Node, port: int, find: Find, metrics: Callable[[], str]) -> None:
        super().__init__((node.addresses[0], port), Handler)
        self.find = find
        # Returns the page of resource metrics.
        self.metrics = metrics
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.authority()))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificates.certificate(node.name), certificates.key(node.name))
        self._context = context

    def finish_request(self, request, address) -> None:
        """Performs the TLS handshake in the connection's thread, so that a slow client does not block others."""
        try:
            with self._context.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, address)
        except (OSError, ssl.SSLError) as error:
            print(f"a request of {address[0]} failed: {error}", flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 600
    # No bytes of the client may be read ahead: after the head they are those of a command's streams.
    rbufsize = 0

    def do_GET(self) -> None:
        try:
            self._check_client()
            place = urlsplit(self.path)
            parts = place.path.strip("/").split("/")
            lists = parse_qs(place.query, keep_blank_values=True)
            query = {key: values[-1] for key, values in lists.items()}
            if place.path == "/healthz":
                self._answer(200, b"ok")
            elif place.path == "/metrics/resource":
                self._answer(200, self.server.metrics().encode())
            elif len(parts) == 4 and parts[0] == "containerLogs":
                self._send_logs(*parts[1:], query)
            elif len(parts) in (4, 5) and parts[0] == "exec":
                # With five parts, the fourth is the pod's UID.
                self._execute(parts[1], parts[2], parts[-1], lists.get("command", []))
            else:
                raise RequestRefused(404, f"this kubelet has no {place.path}")
        except RequestRefused as error:
            self._answer(error.status, str(error).encode())
        except OSError:
            self.close_connection = True

    # A client of SPDY sends a POST, one of WebSocket a GET.
    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because the API server logs its requests."""

    def _check_client(self) -> None:
        subject = dict(pair for part in self.connection.getpeercert()["subject"] for pair in part)
        if subject.get("commonName") != WANTED_CLIENT:
            raise RequestRefused(403, f"{subject.get('commonName')} may not ask a kubelet")

    def _send_logs(self, namespace: str, name: str, container: str, query: dict[str, str]) -> None:
        pod = self.server.find(namespace, name)
        found = pod.container(container) if pod else None
        if found is None:
            raise RequestRefused(404, f"pod {namespace}/{name} has no container {container} here")
        previous = query.get("previous") == "true"
        lives = found.logs[:-1] if previous else found.logs
        if not lives:
            raise RequestRefused(400, f'{"previous terminated " if previous else ""}container "{container}" not found')
        path, process = lives[-1], found.process
        since, tail = _since(query), _tail(query)
        if query.get("follow") == "true" and not previous:
            lines = logs.follow(path, since, tail, lambda: bool(process and process.alive()))
        else:
            lines = iter(logs.read(path, since, tail)[0])
        self._stream(lines, query)

    def _execute(self, namespace: str, name: str, container: str, command: list[str]) -> None:
        pod = self.server.find(namespace, name)
        found = pod.container(container) if pod else None
        if found is None or found.process is None:
            raise RequestRefused(404, f'container not found ("{container}")')
        if not command:
            raise RequestRefused(400, "you must specify at least 1 command")
        fields = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = f"{self.requestline}\r\n{fields}\r\n"
        self.close_connection = True
        try:
            commands.serve(self.connection, head.encode("latin-1"), found.process, command)
        except commands.NotRunning:
            raise RequestRefused(404, f'container not found ("{container}")') from None

    def _stream(self, lines, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = int(query["limitBytes"]) if "limitBytes" in query else None
        stamped = query.get("timestamps") == "true"
        for line in lines:
            text = line if stamped else logs.without_stamp(line)
            text = text if left is None else text[:left]
            left = None if left is None else left - len(text)
            if text:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            if left == 0:
                break
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _since(query: dict[str, str]) -> bytes:
    """Returns the start time of the requested logs; default: the epoch."""
    try:
        if "sinceTime" in query:
            return logs.stamp(datetime.fromisoformat(query["sinceTime"]).astimezone(UTC))
        if "sinceSeconds" in query:
            return logs.stamp(datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"])))
    except ValueError as error:
        raise RequestRefused(400, str(error)) from error
    return b""


def _tail(query: dict[str, str]) -> int | None:
    try:
        return int(query["tailLines"]) if "tailLines" in query else None
    except ValueError as error:
        raise RequestRefused(400, str(error)) from error
