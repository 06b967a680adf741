"""Events of pods, which `kubectl describe` shows."""

from __future__ import annotations

import queue
import threading
import uuid
from dataclasses import dataclass

from tests.cluster.api import Api, ApiError, ApiUnreachable, Object
from tests.cluster.kubelet.timestamp import now

# Reasons that the kubelet reports as warnings; all others are informational.
WARNINGS = ("Failed", "BackOff", "Unhealthy", "FailedMount", "FailedPostStartHook", "FailedPreStopHook")
MOST_WAITING = 1000


@dataclass(frozen=True)
class Event:
    pod: Object
    reason: str
    message: str


class EventRecorder(threading.Thread):
    """Recorder of events, which drops an event if the API server does not answer."""

    def __init__(self, api: Api, node: str) -> None:
        super().__init__(daemon=True)
        self._api, self._node = api, node
        self._waiting: queue.Queue[Event] = queue.Queue(MOST_WAITING)

    def record(self, pod: Object, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        print(f"{metadata['namespace']}/{metadata['name']}: {reason}: {message}", flush=True)
        if not self._waiting.full():
            self._waiting.put(Event(pod, reason, message))

    def run(self) -> None:
        while True:
            event = self._waiting.get()
            try:
                namespace = event.pod["metadata"]["namespace"]
                self._api.post(f"/api/v1/namespaces/{namespace}/events", self._object(event))
            except (ApiError, ApiUnreachable) as error:
                print(f"event lost: {error}", flush=True)

    def _object(self, event: Event) -> Object:
        metadata, moment = event.pod["metadata"], now()
        return {
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if event.reason in WARNINGS else "Normal",
            "reason": event.reason,
            "message": event.message[:1000],
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
