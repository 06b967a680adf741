"""Processes of the cluster: each in a control group and a namespace, with a log; they outlive their starter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.testbed import cgroups
from lab.testbed.cgroups import ControlGroup
from tests.cluster import network
from tests.cluster.layout import LOGS, NAME

# Environment of our programs: no bytecode files in the tree, unbuffered logs.
PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class ProcessDied(Exception):
    """A process of the cluster ended; the message has the end of its log."""


def top_group() -> ControlGroup:
    """Returns the parent of all groups of a cluster."""
    return ControlGroup(cgroups.machine_version(), NAME)


def make_groups(names: Sequence[str]) -> None:
    """Creates a group for each part, with child groups for its own processes and for pods."""
    top = top_group().create()
    top.delegate_controllers()
    for name in names:
        part = top.child(name).create()
        part.delegate_controllers()
        own_group(name).create()


def own_group(part: str) -> ControlGroup:
    """Returns the group of a node's or the control plane's own processes."""
    return top_group().child(part).child("own")


def stop_part(part: str) -> None:
    """Stops a node or the control plane. Its own processes end first, because a kubelet creates and removes groups of
    pods.
    """
    own_group(part).remove()
    top_group().child(part).remove()


class Process:
    """A process, while the command that started it waits for it."""

    def __init__(
        self,
        name: str,
        argv: Sequence[object],
        *,
        group: ControlGroup,
        namespace: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = LOGS / f"{name}.log"
        words = group.enter_command(["env", f"--chdir={folder}", *network.netns_prefix(namespace), *argv])
        appending = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._pid = os.posix_spawnp(
            str(words[0]),
            list(map(str, words)),
            {**os.environ, **(env or {})},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), appending, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    @property
    def pid(self) -> int:
        """Returns the PID of the command itself, which replaces its launchers."""
        return self._pid

    def check(self) -> None:
        """Raises if the process has ended."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            log_end = "".join(f"\n    {line}" for line in lines)
            code = os.waitstatus_to_exitcode(status)
            raise ProcessDied(f"{self.name} ended with {code}; the end of {self.log}:{log_end}")
