"""Containers that run programs of this machine, as objects of the API."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.paths import REPOSITORY
from tests.cluster.api import Object

NAME = "main"
# An image with only the machine's /usr; volumes add the other programs.
IMAGE = "lab/program:1"
IMAGES = '["lab/program"]\ncommand = ["sh"]\n'
# Folder of a container that is a folder of this machine.
SHARED = "/shared"
POD_NAME = {"name": "REPLICA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def pod_spec(argv: Sequence[object], shared: Path, *, grace_seconds: int, **container: object) -> Object:
    """Returns the specification of a pod with one container. `shared` is a folder that it may write to."""
    programs = [("shared", str(shared), SHARED), *((f"programs-{n}", each, each) for n, each in enumerate(_folders()))]
    mounts = [
        {"name": name, "mountPath": path, **({} if path == SHARED else {"readOnly": True})}
        for name, _, path in programs
    ]
    return {
        "containers": [
            {
                "name": NAME,
                "image": IMAGE,
                "command": list(map(str, argv)),
                "workingDir": str(REPOSITORY),
                "volumeMounts": mounts,
                **container,
            }
        ],
        "volumes": [{"name": name, "hostPath": {"path": source}} for name, source, _ in programs],
        "terminationGracePeriodSeconds": grace_seconds,
    }


def environment(**values: str) -> list[Object]:
    """Returns variables of a Python program: the pod's name as REPLICA, and these."""
    python = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    return [POD_NAME, *({"name": name, "value": value} for name, value in {**python, **values}.items())]


def _folders() -> list[str]:
    """Returns the folders with the lab's programs. A container has none of them, unless it is part of /usr."""
    wanted = (str(REPOSITORY), os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix))
    return outermost([folder for folder in wanted if not is_within(folder, "/usr")])


def outermost(folders: Sequence[str]) -> list[str]:
    """Returns the folders that are not within another one."""
    different = dict.fromkeys(folders)
    return [each for each in different if not any(is_within(each, other) for other in different if other != each)]


def is_within(folder: str, other: str) -> bool:
    return Path(folder).is_relative_to(other)
