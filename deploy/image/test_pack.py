"""Images of pack.py, as `ctr images import` and `docker load` read them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import sys
import tarfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pack  # noqa: E402


def program(machine: int, segments: list[int]) -> bytes:
    """Returns an ELF file that has only headers."""
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    )
    return head + b"".join(struct.pack("<I", kind) + bytes(52) for kind in segments)


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


class Pack(unittest.TestCase):
    files = {"sheave": program(0x3E, [1]), "etc/ssl/certs/ca-certificates.crt": b"authorities"}

    def setUp(self) -> None:
        self.archive = pack.archive(self.files, "amd64", "1.2.3", 86_400)
        self.members = members(self.archive)

    def blob(self, reference: dict) -> bytes:
        content = self.members["blobs/" + reference["digest"].replace(":", "/")]
        self.assertEqual(len(content), reference["size"])
        self.assertEqual("sha256:" + hashlib.sha256(content).hexdigest(), reference["digest"])
        return content

    def test_containerd_finds_the_image_by_its_name(self) -> None:
        (described,) = json.loads(self.members["index.json"])["manifests"]
        self.assertEqual(described["annotations"]["io.containerd.image.name"], "localhost/sheave:1.2.3")
        self.assertEqual(described["platform"], {"architecture": "amd64", "os": "linux"})
        manifest = json.loads(self.blob(described))
        config = json.loads(self.blob(manifest["config"]))
        layers = [gzip.decompress(self.blob(layer)) for layer in manifest["layers"]]
        digests = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
        self.assertEqual(config["rootfs"]["diff_ids"], digests)
        self.assertEqual(config["config"]["User"], "65532:65532")
        self.assertEqual(config["created"], "1970-01-02T00:00:00Z")
        self.assertEqual(members(layers[0]), self.files)

    def test_docker_finds_the_same(self) -> None:
        (for_docker,) = json.loads(self.members["manifest.json"])
        self.assertEqual(for_docker["RepoTags"], ["localhost/sheave:1.2.3"])
        for path in [for_docker["Config"], *for_docker["Layers"]]:
            self.assertIn(path, self.members)

    def test_program_has_its_permitted_capabilities(self) -> None:
        with tarfile.open(fileobj=io.BytesIO(pack.layer(self.files))) as tar:
            of_program, of_file = tar.getmember("sheave"), tar.getmember("etc/ssl/certs/ca-certificates.crt")
        self.assertEqual((of_program.mode, of_file.mode), (0o755, 0o644))
        words = struct.unpack("<5I", of_program.pax_headers["SCHILY.xattr.security.capability"].encode())
        # Revision 2, not effective; permitted: NET_BIND_SERVICE, NET_ADMIN, NET_RAW; inheritable: none.
        self.assertEqual(words, (0x02000000, 1 << 10 | 1 << 12 | 1 << 13, 0, 0, 0))
        self.assertEqual(of_file.pax_headers, {})

    def test_the_same_input_gives_the_same_bytes(self) -> None:
        self.assertEqual(self.archive, pack.archive(dict(reversed(self.files.items())), "amd64", "1.2.3", 86_400))

    def test_unusable_binary_is_rejected(self) -> None:
        pack.check_binary(program(0xB7, [1, 2]), "arm64")
        cases = [
            (program(0x3E, [1, 3]), "amd64", "static"),
            (program(0x3E, [1]), "arm64", "not for arm64"),
            (b"#!/bin/sh\n" + bytes(100), "amd64", "not a 64-bit"),
        ]
        for binary, architecture, message in cases:
            with self.assertRaises(SystemExit) as refused:
                pack.check_binary(binary, architecture)
            self.assertIn(message, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
