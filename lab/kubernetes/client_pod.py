"""A pod that does nothing, for clients of this machine that enter its network."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from lab.kubernetes import containers
from lab.kubernetes.session import ClusterSession, wait
from tests.cluster.api import Object
from tests.cluster.processes import top_group

APP = "network"
READY_SECONDS = 60


class ClientPod:
    """The pod on a node, until the end of the `with` block."""

    def __init__(self, session: ClusterSession, node: str, folder: Path) -> None:
        self._session = session
        self._node = node
        spec = containers.pod_spec(["sleep", "infinity"], folder, grace_seconds=0) | {"nodeName": node}
        metadata = {"name": APP, "namespace": "default", "labels": {"app": APP}}
        session.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def enter_command(self) -> list[str]:
        """Returns the prefix of a command that enters the pod's network."""
        wait(lambda: self._pod()["status"].get("phase") == "Running", f"pod {APP}", READY_SECONDS)
        group = top_group().child(self._node).child("pods").child(self._pod()["metadata"]["uid"])
        pids = group.child(containers.NAME).processes()
        return ["nsenter", f"--net=/proc/{min(pids)}/ns/net", "--"]

    def _pod(self) -> Object:
        return self._session.pods(APP)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.kubectl("delete", "--wait=false", f"pod/{APP}")
