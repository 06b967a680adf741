"""Images without a registry: one static program each, in the format of `docker save`, which containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kubelet.heartbeat import architecture


@dataclass(frozen=True)
class Archive:
    """An image: its names, the program with its path, and the command."""

    names: Sequence[str]
    program: Path
    path: str
    command: Sequence[str]
    # Links to the program in its folder.
    links: Sequence[str] = ()

    def write(self, path: Path) -> Path:
        layer = self._layer()
        config = {
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": list(self.command), "Env": ["PATH=/:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": list(self.names), "Layers": ["layer.tar"]}]
        with tarfile.open(path, "w") as archive:
            _add(archive, "config.json", json.dumps(config).encode())
            _add(archive, "manifest.json", json.dumps(manifest).encode())
            _add(archive, "layer.tar", layer)
        return path

    def _layer(self) -> bytes:
        content = io.BytesIO()
        inner = self.path.lstrip("/")
        with tarfile.open(fileobj=content, mode="w") as layer:
            for folder in ("bin", "tmp"):
                made = tarfile.TarInfo(folder)
                made.type, made.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
                layer.addfile(made)
            _add(layer, inner, self.program.read_bytes(), mode=0o755)
            for name in self.links:
                link = tarfile.TarInfo(str(Path(inner).parent / name))
                link.type, link.linkname = tarfile.SYMTYPE, self.path
                layer.addfile(link)
        return content.getvalue()


def busybox(program: Path) -> list[Archive]:
    """Returns the busybox image for pods, and the pause image that holds their namespaces."""
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = [name for name in listed if name != "busybox"]
    path = "/bin/busybox"
    return [
        Archive(["docker.io/library/busybox:1", "docker.io/library/busybox:latest"], program, path, ["/bin/sh"], links),
        Archive([PAUSE], program, path, [path, "sleep", "infinity"]),
    ]


PAUSE = "sheave.dev/pause:1"


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
