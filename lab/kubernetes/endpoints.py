"""Ready endpoints of a Service, in the order in which they became ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.cluster.api import Api, ApiError, ApiUnreachable, Object

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class PublishedPod:
    """A pod of the Service, and when this process first saw it as a ready endpoint (wall clock)."""

    pod: str
    uid: str
    node: str
    at: float


class EndpointWatch:
    """Watches the Service's EndpointSlices, as kube-proxy and Sheave do."""

    def __init__(self, api: Api, service: str) -> None:
        self._api = api
        self._query = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._published: dict[str, PublishedPod] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def published(self) -> list[PublishedPod]:
        """Returns every pod that has been a ready endpoint."""
        return list(self._published.values())

    def end(self) -> None:
        """Ends the watch; its connection ends with the next event, or with the API server."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            try:
                self._watch()
            except (ApiError, ApiUnreachable):
                continue

    def _watch(self) -> None:
        listing = self._api.get(SLICES, **self._query)
        self._see(listing["items"])
        for kind, item in self._api.watch(SLICES, listing["metadata"]["resourceVersion"], **self._query):
            if self._ended.is_set() or kind == "ERROR":
                return
            if kind in ("ADDED", "MODIFIED"):
                self._see([item])

    def _see(self, slices: Iterable[Object]) -> None:
        now = time.time()
        for pod, uid, node in ready_pods(slices):
            self._published.setdefault(pod, PublishedPod(pod, uid, node, now))


def ready_pods(slices: Iterable[Object]) -> list[tuple[str, str, str]]:
    """Returns name, UID and node of the pods that are ready endpoints."""
    endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or []]
    return [
        (endpoint["targetRef"]["name"], endpoint["targetRef"]["uid"], endpoint["nodeName"])
        for endpoint in endpoints
        if (endpoint.get("conditions") or {}).get("ready") and "targetRef" in endpoint
    ]
