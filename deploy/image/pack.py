"""Packs a static binary into an image FROM scratch: an OCI layout that is also a docker archive, in one tar file.

    python3 deploy/image/pack.py amd64|arm64 BINARY FOLDER

It prints the archive's path. The build is reproducible.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import struct
import sys
import tarfile
import tomllib
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "localhost/sheave"
# A user that exists neither in images nor on the machine.
USER = 65532
ARCHITECTURES = {"amd64": 0x3E, "arm64": 0xB7}
# Directory of trusted authorities on Debian, where programs look for them; `scratch` has none.
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"

# From linux/capability.h: low ports for serving, interfaces and frames for announcing addresses.
NET_BIND_SERVICE, NET_ADMIN, NET_RAW = 10, 12, 13
# Version of `struct vfs_cap_data` in linux/capability.h without a user namespace.
CAPABILITY_REVISION_2 = 0x02000000


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[1] not in ARCHITECTURES:
        sys.exit(f"usage: pack.py {'|'.join(ARCHITECTURES)} BINARY FOLDER")
    architecture, binary, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    authorities = Path("/") / AUTHORITIES
    if not authorities.is_file():
        print("pack: this machine has no /etc/ssl/certs, so the image trusts no authority", file=sys.stderr)
    files = {"sheave": check_binary(binary.read_bytes(), architecture)}
    if authorities.is_file():
        files[AUTHORITIES] = authorities.read_bytes()
    path = folder / f"sheave-{version()}-{architecture}.tar"
    path.write_bytes(archive(files, architecture, version(), created_at()))
    print(path)


def version() -> str:
    """Returns the workspace's version."""
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def created_at() -> int:
    """Returns SOURCE_DATE_EPOCH, as reproducible-builds.org specifies, else 0."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def check_binary(binary: bytes, architecture: str) -> bytes:
    """Returns the binary if it is static and for this architecture; exits otherwise."""
    if binary[:6] != b"\x7fELF\x02\x01":
        sys.exit("pack: not a 64-bit little-endian program")
    (machine,) = struct.unpack_from("<H", binary, 18)
    if machine != ARCHITECTURES[architecture]:
        sys.exit(f"pack: program is not for {architecture}")
    if INTERPRETER in segments(binary):
        sys.exit("pack: program is not static, and `scratch` has no loader")
    return binary


INTERPRETER = 3


def segments(binary: bytes) -> list[int]:
    """Returns the types of an ELF file's program headers."""
    (start,) = struct.unpack_from("<Q", binary, 32)
    size, count = struct.unpack_from("<HH", binary, 54)
    return [struct.unpack_from("<I", binary, start + n * size)[0] for n in range(count)]


def archive(files: dict[str, bytes], architecture: str, tag: str, created: int) -> bytes:
    """Returns the image in the format of `ctr images import` and `docker load`."""
    plain = layer(files)
    packed = gzip.compress(plain, compresslevel=9, mtime=0)
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    top = blob(packed, "layer.v1.tar+gzip")
    config = blob(encoded(configuration(plain, architecture, tag, created)), "config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
    described = blob(encoded({**manifest, "config": config, "layers": [top]}), "manifest.v1+json")
    described["platform"] = {"architecture": architecture, "os": "linux"}
    described["annotations"] = {
        "io.containerd.image.name": f"{NAME}:{tag}",
        "org.opencontainers.image.ref.name": tag,
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    path = lambda blob: "blobs/sha256/" + blob["digest"].removeprefix("sha256:")
    for_docker = [{"Config": path(config), "RepoTags": [f"{NAME}:{tag}"], "Layers": [path(top)]}]
    members = {
        "oci-layout": encoded({"imageLayoutVersion": "1.0.0"}),
        "index.json": encoded(index),
        "manifest.json": encoded(for_docker),
        **dict(sorted(blobs.items())),
    }
    return tar([(name, 0o644, content, {}) for name, content in members.items()])


def configuration(layer: bytes, architecture: str, tag: str, created: int) -> dict:
    """Returns the default configuration of a container."""
    when = datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {"title": "sheave", "version": tag, "licenses": "Apache-2.0"}
    return {
        "created": when,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Entrypoint": ["/sheave"],
            "WorkingDir": "/",
            "Labels": {f"org.opencontainers.image.{name}": value for name, value in labels.items()},
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": when, "created_by": "deploy/image/pack.py"}],
    }


def layer(files: dict[str, bytes]) -> bytes:
    """Returns the layer with all files; programs are at the top."""
    members: list[tuple] = []
    folders = {parent for name in files for parent in map(str, Path(name).parents) if parent != "."}
    members += [(folder + "/", 0o755, b"", {}) for folder in sorted(folders)]
    for name, content in sorted(files.items()):
        is_program = "/" not in name
        attributes = {"SCHILY.xattr.security.capability": capability()} if is_program else {}
        members.append((name, 0o755 if is_program else 0o644, content, attributes))
    return tar(members)


def capability() -> str:
    """Returns the program's file capabilities: permitted but not effective, so that it starts in a container without
    them too.
    """
    permitted = 1 << NET_BIND_SERVICE | 1 << NET_ADMIN | 1 << NET_RAW
    words = struct.pack("<IIIII", CAPABILITY_REVISION_2, permitted, 0, 0, 0)
    # The header's text is UTF-8, and none of these bytes is above 127.
    assert re.fullmatch(rb"[\x00-\x7f]*", words)
    return words.decode()


def tar(members: list[tuple]) -> bytes:
    """Returns a tar file owned by root, without timestamps."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, mode, content, attributes in members:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.mode, member.size, member.pax_headers = mode, len(content), attributes
            file.addfile(member, io.BytesIO(content))
    return out.getvalue()


def encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


if __name__ == "__main__":
    main()
