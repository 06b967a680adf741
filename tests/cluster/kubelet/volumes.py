"""Volumes of a pod as folders of the node, whose content is kept current.

Updates are atomic: `..data` is a link to a versioned folder, and a rename replaces it. A container reads files through
links below it, so it sees either the old or the new files.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.kubelet import environment
from tests.cluster.kubelet.environment import Data, MissingSource

DATA = "..data"
DEFAULT_MODE = 0o644
TOKEN_MODE = 0o600
TOKEN_SECONDS = 3600


@dataclass(frozen=True)
class VolumeFile:
    content: bytes
    mode: int


# Returns a service account token for an audience (None is the API server's) and a lifetime in seconds.
Tokens = Callable[[str | None, int], str]


@dataclass(frozen=True)
class VolumeSources:
    """Sources of volume contents."""

    data: Data
    token: Tokens
    addresses: Mapping[str, str]


class Volumes:
    """Volumes of one pod."""

    def __init__(self, folder: Path, sources: VolumeSources) -> None:
        self._folder = folder
        self._sources = sources

    def refresh(self, pod: Object) -> None:
        """Creates and updates the volumes. Raises MissingSource if a source is missing."""
        lacking: MissingSource | None = None
        for volume in pod["spec"].get("volumes", []):
            try:
                self._refresh(volume, pod)
            except MissingSource as error:
                # A missing source of one volume does not delay the others.
                lacking = lacking or error
        if lacking:
            raise lacking

    def _refresh(self, volume: Object, pod: Object) -> None:
        path = self.path(volume)
        if "hostPath" in volume:
            _prepare_host_path(path, volume["hostPath"])
            return
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if "emptyDir" not in volume:
            write(path, _with_group(self._content(volume, pod), pod), _owner(pod))
        elif is_new:
            _open_to(path, pod)

    def path(self, volume: Object) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        return self._folder / volume["name"]

    def _content(self, volume: Object, pod: Object) -> dict[str, VolumeFile]:
        if "projected" in volume:
            projected = volume["projected"]
            mode = projected.get("defaultMode", DEFAULT_MODE)
            files: dict[str, VolumeFile] = {}
            for source in projected.get("sources", []):
                files |= self._source(source, mode, pod)
            return files
        for kind in ("secret", "configMap", "downwardAPI"):
            if kind in volume:
                source = {**volume[kind], "name": volume[kind].get("secretName", volume[kind].get("name"))}
                return self._source({kind: source}, source.get("defaultMode", DEFAULT_MODE), pod)
        kind = next((key for key in volume if key != "name"), "nothing")
        raise MissingSource(f'volume "{volume["name"]}" is of {kind}, which this kubelet has not')

    def _source(self, source: Object, mode: int, pod: Object) -> dict[str, VolumeFile]:
        if "secret" in source:
            return self._object_content("secrets", source["secret"], mode, pod)
        if "configMap" in source:
            return self._object_content("configmaps", source["configMap"], mode, pod)
        if "downwardAPI" in source:
            items = source["downwardAPI"].get("items", [])
            return {
                item["path"]: VolumeFile(self._pod_field_content(item, pod), item.get("mode", mode)) for item in items
            }
        if "serviceAccountToken" in source:
            projection = source["serviceAccountToken"]
            token = self._sources.token(projection.get("audience"), projection.get("expirationSeconds", TOKEN_SECONDS))
            return {projection["path"]: VolumeFile(token.encode(), TOKEN_MODE)}
        raise MissingSource(f"unsupported source of a volume: {', '.join(source)}")

    def _object_content(self, kind: str, source: Object, mode: int, pod: Object) -> dict[str, VolumeFile]:
        held = self._sources.data(kind, pod["metadata"]["namespace"], source["name"])
        if held is None:
            if source.get("optional"):
                return {}
            raise MissingSource(f'{kind[:-1]} "{source["name"]}" not found')
        if "items" not in source:
            return {key: VolumeFile(content, mode) for key, content in held.items()}
        files = {}
        for item in source["items"]:
            if item["key"] in held:
                files[item["path"]] = VolumeFile(held[item["key"]], item.get("mode", mode))
            elif not source.get("optional"):
                raise MissingSource(f"{kind[:-1]} {source['name']} references non-existent key: {item['key']}")
        return files

    def _pod_field_content(self, item: Object, pod: Object) -> bytes:
        if "fieldRef" in item:
            return environment.field(pod, item["fieldRef"]["fieldPath"], self._sources.addresses).encode()
        return environment.resource(pod, item["resourceFieldRef"]).encode()


def write(folder: Path, files: Mapping[str, VolumeFile], owner: tuple[int, int] = (0, 0)) -> bool:
    """Replaces the content of the folder atomically; returns true if anything changed."""
    current = folder / DATA
    if current.is_dir() and _read(current) == dict(files):
        return False
    before = os.readlink(current) if current.is_symlink() else None
    moment = folder / f"..{time.time_ns()}"
    for name, file in files.items():
        path = moment / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
        os.chown(path, *owner)
    moment.mkdir(exist_ok=True)
    new = folder / f"{DATA}_new"
    new.unlink(missing_ok=True)
    new.symlink_to(moment.name)
    new.rename(current)
    _link(folder, {name.partition("/")[0] for name in files})
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)
    return True


def _read(folder: Path) -> dict[str, VolumeFile]:
    """Returns the files as written."""
    paths = [path for path in folder.resolve().rglob("*") if path.is_file()]
    top = folder.resolve()
    return {str(path.relative_to(top)): VolumeFile(path.read_bytes(), path.stat().st_mode & 0o7777) for path in paths}


def _link(folder: Path, names: set[str]) -> None:
    """Updates the container's links to the content: one link for each name."""
    there = {path.name for path in folder.iterdir() if not path.name.startswith("..")}
    for name in there - names:
        (folder / name).unlink()
    for name in names - there:
        (folder / name).symlink_to(f"{DATA}/{name}")


def _owner(pod: Object) -> tuple[int, int]:
    """Returns the owner: the containers' common user, if there is one, and the pod's group."""
    context = pod["spec"].get("securityContext") or {}
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    users = {
        (container.get("securityContext") or {}).get("runAsUser", context.get("runAsUser", 0))
        for container in containers
    }
    return (users.pop() if len(users) == 1 else 0), context.get("fsGroup", 0)


def _with_group(files: dict[str, VolumeFile], pod: Object) -> dict[str, VolumeFile]:
    """Makes the files readable for the pod's volume group, if any."""
    if "fsGroup" not in (pod["spec"].get("securityContext") or {}):
        return files
    return {name: VolumeFile(file.content, file.mode | 0o440) for name, file in files.items()}


def _open_to(path: Path, pod: Object) -> None:
    path.chmod(0o777)
    group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o2777)


def _prepare_host_path(path: Path, source: Object) -> None:
    if source.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif source.get("type") == "FileOrCreate":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    elif not path.exists():
        raise MissingSource(f"hostPath {path} does not exist on the node")
