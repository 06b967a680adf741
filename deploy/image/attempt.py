"""Runs an image like a container runtime: unpacked, unprivileged with one capability, in an isolated network.

    python3 deploy/image/attempt.py ARCHIVE

It prints the version, then serves a request on port 80 from an endpoint with a name. Serving requires root; without
root it only prints the version.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Iterator

NET_BIND_SERVICE = 10
CLONE_NEWNET = 0x40000000
PR_CAPBSET_DROP, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 24, 8, 38
CAPABILITY_VERSION_3 = 0x20080522
# Generous for a busy machine.
TIMEOUT_SECONDS = 30
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: attempt.py ARCHIVE")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        image = unpack(Path(sys.argv[1]), root)
        if os.geteuid() != 0:
            version = subprocess.check_output([root / "sheave", "--version"], text=True)
            print(f"attempt: {version.strip()}; serving requires root", file=sys.stderr)
            return
        print(f"attempt: {in_container(root, image, may_bind=False, arguments=['--version']).strip()}", file=sys.stderr)
        serve(root, image)
        print("attempt: served a request on port 80", file=sys.stderr)


def unpack(archive: Path, root: Path) -> dict:
    """Unpacks the layers and checks every digest; returns the configuration."""
    with tarfile.open(archive) as tar:
        blobs = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    for name, content in blobs.items():
        if name.startswith("blobs/"):
            assert name == "blobs/sha256/" + hashlib.sha256(content).hexdigest(), name
    blob = lambda it: blobs["blobs/sha256/" + it["digest"].removeprefix("sha256:")]
    manifest = json.loads(blob(json.loads(blobs["index.json"])["manifests"][0]))
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(layer))) as tar:
            tar.extractall(root, filter="fully_trusted")
            if os.geteuid() == 0:
                for member in tar:
                    set_extended_attributes(root / member.name, member.pax_headers)
    root.chmod(0o755)
    return json.loads(blob(manifest["config"]))["config"]


def set_extended_attributes(path: Path, headers: dict[str, str]) -> None:
    """Sets the extended attributes of a tar member."""
    for name, value in headers.items():
        if name.startswith("SCHILY.xattr."):
            os.setxattr(path, name.removeprefix("SCHILY.xattr."), value.encode())


def in_container(root: Path, image: dict, may_bind: bool, arguments: list[str]) -> str:
    command = image["Entrypoint"] + arguments
    enter = lambda: confine(root, image, may_bind)
    return subprocess.check_output(command, preexec_fn=enter, text=True, timeout=TIMEOUT_SECONDS)


def confine(root: Path, image: dict, may_bind: bool) -> None:
    """Confines a process like a container runtime, in the same order."""
    user, group = map(int, image["User"].split(":"))
    os.chroot(root)
    os.chdir(image["WorkingDir"])
    kept = 1 << NET_BIND_SERVICE if may_bind else 0
    for capability in range(64):
        if not kept >> capability & 1:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable, twice.
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    if libc.capset(header, sets) != 0 or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot drop privileges")


def serve(root: Path, image: dict) -> None:
    """Serves a request on port 80 from an endpoint named in the hosts file."""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/hosts").write_text("127.0.0.1 endpoint.test\n")
    (root / "run").mkdir()
    os.chown(root / "run", *map(int, image["User"].split(":")))
    isolate_network()
    with endpoint() as port:
        arguments = ["serve", "--listen", "http://127.0.0.1:80", "--to", f"endpoint.test:{port}"]
        arguments += ["--admin", "off", "--ready-file", "/run/ready.json"]
        enter = lambda: confine(root, image, may_bind=True)
        with subprocess.Popen(image["Entrypoint"] + arguments, preexec_fn=enter) as process:
            try:
                wait_for(root / "run/ready.json", process)
                with urllib.request.urlopen("http://127.0.0.1:80/", timeout=TIMEOUT_SECONDS) as answer:
                    assert answer.read() == b"here", "unexpected answer"
            finally:
                process.terminate()
        assert process.returncode == 0, f"ended with {process.returncode}"


def isolate_network() -> None:
    """Moves into a new network namespace, without the machine's ports and settings."""
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")
    subprocess.check_call(["ip", "link", "set", "lo", "up"])
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("1024")


@contextlib.contextmanager
def endpoint() -> Iterator[int]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{path.name} does not come; ended with {process.poll()}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
