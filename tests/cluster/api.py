"""Client of the API server: JSON requests, lists and watches."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]

TIMEOUT_SECONDS = 10.0
# A dead connection of a watch is silent as well; bookmarks arrive about once a minute.
WATCH_SILENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.3
MERGE = "application/merge-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
GONE = 410


class ApiError(Exception):
    """Error answer of the API server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiUnreachable(Exception):
    """The API server does not answer."""


class Api:
    """Client with one server and one user, or acting as `user`. It is thread-safe and keeps idle connections."""

    def __init__(self, kubeconfig: Path, user: str = "") -> None:
        self._impersonation = {"Impersonate-User": user} if user else {}
        config = json.loads(kubeconfig.read_text())
        cluster, credentials = config["clusters"][0]["cluster"], config["users"][0]["user"]
        url = urlsplit(cluster["server"])
        self._host, self._port = url.hostname, url.port
        self._context = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]).decode())
        with tempfile.NamedTemporaryFile() as both:
            both.write(_decoded(credentials["client-certificate-data"]) + _decoded(credentials["client-key-data"]))
            both.flush()
            self._context.load_cert_chain(both.name)
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def get(self, path: str, **query: object) -> Object:
        return json.loads(self.request("GET", _with_query(path, query)))

    def text(self, path: str, **query: object) -> str:
        """Returns plain text, such as health and logs."""
        return self.request("GET", _with_query(path, query)).decode(errors="replace")

    def post(self, path: str, body: Object) -> Object:
        return json.loads(self.request("POST", path, body))

    def patch(self, path: str, body: Object, kind: str = MERGE, **query: object) -> Object:
        return json.loads(self.request("PATCH", _with_query(path, query), body, kind))

    def apply(self, path: str, body: Object) -> Object:
        """Creates or updates an object by server-side apply."""
        return self.patch(path, body, APPLY, fieldManager="sheave-cluster", force="true")

    def delete(self, path: str, body: Object | None = None) -> None:
        self.request("DELETE", path, body)

    def request(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> bytes:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **self._impersonation}
        headers |= {} if body is None else {"Content-Type": kind}
        status, answer = self._answer(method, path, sent, headers)
        if status >= 300:
            raise ApiError(status, _message(answer))
        return answer

    def watch(self, path: str, resource_version: str, **query: object) -> Iterator[tuple[str, Object]]:
        """Yields events from a resource version on, until the server ends the watch."""
        parameters = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": resource_version, **query}
        connection = self._connection(WATCH_SILENCE_SECONDS)
        try:
            connection.request("GET", _with_query(path, parameters), headers={"Accept": "application/json"})
            answer = connection.getresponse()
            if answer.status >= 300:
                raise ApiError(answer.status, _message(answer.read()))
            for line in answer:
                event = json.loads(line)
                yield event["type"], event["object"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiUnreachable(str(error)) from error
        finally:
            connection.close()

    def _answer(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Sends a request. Retries if an idle connection fails, because the server may have closed it."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self._connection(TIMEOUT_SECONDS)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                result = answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if kept is None:
                    raise ApiUnreachable(str(error)) from error
                continue
            with self._lock:
                self._idle.append(connection)
            return result

    def _connection(self, timeout: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=timeout)


def follow(
    api: Api,
    path: str,
    on_change: Callable[[Object], None],
    on_delete: Callable[[Object], None],
    on_synced: Callable[[], None] = lambda: None,
    **query: object,
) -> None:
    """Calls back for every object and deletion, without end and over outages of the server. Missed changes are reported
    after an outage.
    """
    known: dict[str, Object] = {}
    while True:
        try:
            listing = api.get(path, **query)
            present = {item["metadata"]["uid"]: item for item in listing["items"]}
            for uid in known.keys() - present.keys():
                on_delete(known.pop(uid))
            for uid, item in present.items():
                known[uid] = item
                on_change(item)
            on_synced()
            _watch_until_expired(api, path, listing["metadata"]["resourceVersion"], known, on_change, on_delete, query)
        except (ApiUnreachable, ApiError):
            time.sleep(PAUSE_SECONDS)


def _watch_until_expired(
    api: Api,
    path: str,
    version: str,
    known: dict[str, Object],
    on_change: Callable[[Object], None],
    on_delete: Callable[[Object], None],
    query: dict[str, object],
) -> None:
    """Watches until the resource version expires or the server is unreachable."""
    while True:
        for kind, item in api.watch(path, version, **query):
            if kind == "ERROR":
                raise ApiError(item.get("code", GONE), item.get("message", "watch ended"))
            version = item["metadata"]["resourceVersion"]
            if kind in ("ADDED", "MODIFIED"):
                known[item["metadata"]["uid"]] = item
                on_change(item)
            elif kind == "DELETED":
                known.pop(item["metadata"]["uid"], None)
                on_delete(item)


def _with_query(path: str, query: dict[str, object]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _message(answer: bytes) -> str:
    try:
        return json.loads(answer)["message"]
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")[:500]


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)
