"""Tells the API server what has become of pods: for each the newest status, until it has been heard."""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import dataclass

from tests.cluster.api import STRATEGIC_MERGE, Api, ApiError, Object, Unreachable

PAUSE_SECONDS = 0.3
NOT_FOUND, CONFLICT = 404, 409


@dataclass
class Report:
    namespace: str
    name: str
    status: Object
    # There is nothing left of the pod: its object may go.
    final: bool


class Reporter(threading.Thread):
    """One thread for all pods of a node; a server that is away keeps none of them waiting."""

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._waiting: dict[str, Report] = {}
        self._said: dict[str, Object] = {}
        self._news = threading.Condition()

    def tell(self, pod: Object, status: Object, *, final: bool = False) -> None:
        metadata = pod["metadata"]
        with self._news:
            waiting = self._waiting.get(metadata["uid"])
            if waiting and waiting.final:
                return
            self._waiting[metadata["uid"]] = Report(metadata["namespace"], metadata["name"], status, final)
            self._news.notify()

    def seen(self, pod: Object) -> None:
        """So the API server has it: where a controller has said otherwise, as of the pods of a node that was not heard of
        for a while, the same is said again."""
        with self._news:
            uid = pod["metadata"]["uid"]
            said, has = self._said.get(uid), _conditions(pod.get("status", {}))
            if said and any(has.get(kind) != holds for kind, holds in _conditions(said).items()):
                del self._said[uid]

    def forget(self, uid: str) -> None:
        """Its object is gone."""
        with self._news:
            self._waiting.pop(uid, None)
            self._said.pop(uid, None)

    def run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting)
                uid = next(iter(self._waiting))
                report = self._waiting.pop(uid)
            try:
                self._send(uid, report)
            except Unreachable:
                self._keep(uid, report)
                threading.Event().wait(PAUSE_SECONDS)
            except ApiError as error:
                # Another pod may have the name by now, or none.
                if error.status not in (NOT_FOUND, CONFLICT):
                    print(f"{report.namespace}/{report.name}: status refused: {error}", flush=True)
                    self._keep(uid, report)
                    threading.Event().wait(PAUSE_SECONDS)

    def _send(self, uid: str, report: Report) -> None:
        path = f"/api/v1/namespaces/{report.namespace}/pods/{report.name}"
        if self._said.get(uid) != report.status:
            body = {"metadata": {"uid": uid}, "status": report.status}
            self._api.patch(f"{path}/status", body, STRATEGIC_MERGE)
            with self._news:
                self._said[uid] = deepcopy(report.status)
        if report.final:
            self._api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    def _keep(self, uid: str, report: Report) -> None:
        """For the next try, unless there is something newer."""
        with self._news:
            self._waiting.setdefault(uid, report)


def _conditions(status: Object) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
