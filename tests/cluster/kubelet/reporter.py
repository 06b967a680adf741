"""Reports pod statuses to the API server: the newest status of each pod, until it is accepted."""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import dataclass

from tests.cluster.api import STRATEGIC_MERGE, Api, ApiError, ApiUnreachable, Object

PAUSE_SECONDS = 0.3
NOT_FOUND, CONFLICT = 404, 409


@dataclass
class StatusReport:
    namespace: str
    name: str
    status: Object
    # True if the pod has ended and its object can be deleted.
    final: bool


class StatusReporter(threading.Thread):
    """Thread for all pods of a node; an outage of the API server does not block the pods."""

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._pending: dict[str, StatusReport] = {}
        self._sent: dict[str, Object] = {}
        self._changed = threading.Condition()

    def submit(self, pod: Object, status: Object, *, final: bool = False) -> None:
        metadata = pod["metadata"]
        with self._changed:
            pending = self._pending.get(metadata["uid"])
            if pending and pending.final:
                return
            self._pending[metadata["uid"]] = StatusReport(metadata["namespace"], metadata["name"], status, final)
            self._changed.notify()

    def observe(self, pod: Object) -> None:
        """Observes the server's status. If a controller has changed it, as for the pods of an unreachable node, the
        last status is sent again.
        """
        with self._changed:
            uid = pod["metadata"]["uid"]
            sent, current = self._sent.get(uid), _conditions(pod.get("status", {}))
            if sent and any(current.get(kind) != holds for kind, holds in _conditions(sent).items()):
                del self._sent[uid]

    def forget(self, uid: str) -> None:
        """Deletes the state of a removed pod."""
        with self._changed:
            self._pending.pop(uid, None)
            self._sent.pop(uid, None)

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                uid = next(iter(self._pending))
                report = self._pending.pop(uid)
            try:
                self._send(uid, report)
            except ApiUnreachable:
                self._requeue(uid, report)
                threading.Event().wait(PAUSE_SECONDS)
            except ApiError as error:
                # The name may belong to another pod, or to none.
                if error.status not in (NOT_FOUND, CONFLICT):
                    print(f"{report.namespace}/{report.name}: status refused: {error}", flush=True)
                    self._requeue(uid, report)
                    threading.Event().wait(PAUSE_SECONDS)

    def _send(self, uid: str, report: StatusReport) -> None:
        path = f"/api/v1/namespaces/{report.namespace}/pods/{report.name}"
        if self._sent.get(uid) != report.status:
            body = {"metadata": {"uid": uid}, "status": report.status}
            self._api.patch(f"{path}/status", body, STRATEGIC_MERGE)
            with self._changed:
                self._sent[uid] = deepcopy(report.status)
        if report.final:
            self._api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    def _requeue(self, uid: str, report: StatusReport) -> None:
        """Queues a report again, unless there is a newer one."""
        with self._changed:
            self._pending.setdefault(uid, report)


def _conditions(status: Object) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
