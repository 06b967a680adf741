"""Clients in pods, one on each node; their output is in files of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from lab.child import ChildFailed
from lab.kubernetes import containers
from lab.kubernetes.session import ClusterSession, wait
from tests.cluster.api import Object
from tests.cluster.layout import NODES

APP = "client"
OUTPUT = 'exec "$@" >/shared/output 2>/shared/log'
START_SECONDS = 60
LOG_LINES = 15


class ClientPods:
    """Running clients. `stop` ends them by SIGTERM, and waits until they have written everything."""

    def __init__(self, session: ClusterSession, argv: Sequence[object], folder: Path, grace_seconds: int) -> None:
        self._session = session
        self._grace_seconds = grace_seconds
        self._folders = {node.name: folder / f"{APP}-{node.name}" for node in NODES}
        for each in self._folders.values():
            each.mkdir()
        self._outputs = [OutputReader(each / "output") for each in self._folders.values()]
        session.apply(*(self._pod(node, argv) for node in self._folders))

    def _pod(self, node: str, argv: Sequence[object]) -> Object:
        command = ["sh", "-c", OUTPUT, APP, *argv]
        spec = containers.pod_spec(
            command, self._folders[node], grace_seconds=self._grace_seconds, env=containers.environment()
        )
        metadata = {"name": f"{APP}-{node}", "namespace": "default", "labels": {"app": APP}}
        # Named nodes, so that each has a client: the scheduler would only prefer that.
        spec |= {"nodeName": node, "restartPolicy": "Never"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def wait_for_output(self) -> None:
        """Waits until each client has written something."""

        def have_written() -> bool:
            self.check()
            return all(each.has_content() for each in self._outputs)

        wait(have_written, "output of each client", START_SECONDS)

    def lines(self) -> list[list[str]]:
        """Returns the complete lines that each client has written since the last call."""
        return [output.lines() for output in self._outputs]

    def check(self) -> None:
        """Raises if a client has failed."""
        for pod in self._session.pods(APP):
            if pod["status"].get("phase") == "Failed":
                name = pod["metadata"]["name"]
                raise ChildFailed(f"{name} failed{self._log_end(name.removeprefix(f'{APP}-'))}")

    def _log_end(self, node: str) -> str:
        log = self._folders[node] / "log"
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else ["it has no log"]
        return "".join(f"\n    {line}" for line in lines)

    def stop(self) -> None:
        self._session.kubectl("delete", "--wait=false", "pods", f"--selector=app={APP}")
        self._session.wait_until_gone(APP, self._grace_seconds + START_SECONDS)


class OutputReader:
    """Reader of a file that a process appends lines to, or that does not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def has_content(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._path.stat().st_size > 0
        return False

    def lines(self) -> list[str]:
        """Returns the complete lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._position += len(whole) + len(newline)
        return (whole + newline).decode(errors="replace").splitlines()
