"""Identity and privileges of a container's process, from both security contexts."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.api import Object
from tests.cluster.kubelet.enter import CAPABILITIES
from tests.cluster.kubelet.environment import MissingSource

# Defaults of containerd and Docker.
USUAL = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    user: int
    group: int
    groups: list[int]
    capabilities: list[str]
    privileged: bool
    no_new_privileges: bool
    read_only: bool


def identity(pod: Object, container: Object) -> Identity:
    wide = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}
    merged = {**wide, **own}
    user = merged.get("runAsUser", 0)
    if merged.get("runAsNonRoot") and user == 0:
        raise MissingSource("container has runAsNonRoot and image will run as root")
    groups = [*wide.get("supplementalGroups", []), *([wide["fsGroup"]] if "fsGroup" in wide else [])]
    return Identity(
        user=user,
        group=merged.get("runAsGroup", 0),
        groups=groups,
        capabilities=capabilities(own.get("capabilities") or {}),
        privileged=bool(own.get("privileged")),
        no_new_privileges=own.get("allowPrivilegeEscalation") is False,
        read_only=bool(own.get("readOnlyRootFilesystem")),
    )


def capabilities(requested: Object) -> list[str]:
    added = [_plain(name) for name in requested.get("add") or []]
    dropped = [_plain(name) for name in requested.get("drop") or []]
    kept = set() if "ALL" in dropped else set(USUAL) - set(dropped)
    if "ALL" in added:
        kept = set(CAPABILITIES) - set(dropped)
    unknown = set(added) - set(CAPABILITIES) - {"ALL"}
    if unknown:
        raise MissingSource(f"unknown capabilities: {', '.join(sorted(unknown))}")
    return sorted(kept | (set(added) - {"ALL"}))


def _plain(name: str) -> str:
    return name.upper().removeprefix("CAP_")
