"""The programs that a cluster consists of: built from Go modules, or unpacked from Debian packages, once."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.debian import DebianSuite
from lab.paths import MissingRequirement
from tests.cluster.layout import CACHE, FOLDER, PROGRAMS, REPOSITORY

SUITE = "forky"
KUBERNETES = FOLDER / "kubernetes"
GATEWAY_API = REPOSITORY / "tests" / "conformance" / "gateway-api"
COREDNS = GATEWAY_API / "coredns"
# Its output is what somebody waits for who sees nothing else for minutes.
STATUS_SECONDS = 30.0


@dataclass(frozen=True)
class GoProgram:
    """A program from a Go module, in the version of the `go.mod` in this folder."""

    name: str
    module: Path
    package: str
    subcommand: Sequence[str] = ("build",)
    ldflags: str = "-s -w"

    @property
    def path(self) -> Path:
        return PROGRAMS / self.name

    def make(self) -> None:
        """Go itself knows whether anything is to do, but takes a second to say so: the `go.mod` decides."""
        stamp = PROGRAMS / f".{self.name}.go.mod"
        wanted = (self.module / "go.mod").read_bytes()
        if self.path.is_file() and stamp.is_file() and stamp.read_bytes() == wanted:
            return
        argv = ["go", *self.subcommand, "-trimpath", "-ldflags", self.ldflags, "-o", str(self.path), self.package]
        _run_with_progress(argv, self.module, f"building {self.name}")
        stamp.write_bytes(wanted)


def version_of(module: str, folder: Path) -> str:
    """Of a module that a `go.mod` requires."""
    for line in (folder / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == [module]:
            return words[1]
    raise MissingRequirement(f"{folder}/go.mod does not require {module}")


def _version_flags() -> str:
    """Without the version, Kubernetes says that it is v0.0.0, and clients believe it."""
    version = version_of("k8s.io/kubernetes", KUBERNETES)
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s -w", *(f"-X {package}.{name}={text}" for package in packages for name, text in values.items())]
    )


def kubernetes(name: str) -> GoProgram:
    return GoProgram(name, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", ldflags=_version_flags())


CONTROL_PLANE = tuple(map(kubernetes, ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")))
ECHO = GoProgram("echo-basic", GATEWAY_API, "sigs.k8s.io/gateway-api/conformance/echo-basic")
SUITE_OF_GATEWAY_API = GoProgram(
    "conformance.test", GATEWAY_API, "sigs.k8s.io/gateway-api/conformance", subcommand=("test", "-c", "-vet=off")
)
LIST_OF_SUITE = GoProgram("conformance-list", GATEWAY_API, "./list")
# One of the pods that the suite waits for before anything else.
COREDNS_SERVER = GoProgram("coredns", COREDNS, "github.com/coredns/coredns")

# A package of Debian, and where the program is in it. Clients of Kubernetes are in its package by an exact version.
PACKAGES = {
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "kubectl": ("kubectl=1.36.4+ds-1", "usr/bin/kubectl"),
}


def make() -> None:
    """Everything that a cluster needs."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for name, (package, path) in PACKAGES.items():
        _unpack(name, package, path)
    for program in (*CONTROL_PLANE, ECHO):
        program.make()


def make_suite() -> None:
    """What the Gateway API's conformance tests need beside a cluster."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for program in (LIST_OF_SUITE, ECHO, COREDNS_SERVER, SUITE_OF_GATEWAY_API):
        program.make()


def missing() -> list[str]:
    """What has not been made yet."""
    names = [*PACKAGES, *(program.name for program in (*CONTROL_PLANE, ECHO))]
    return [name for name in names if not (PROGRAMS / name).is_file()]


def module_folder(module: str, folder: Path) -> Path:
    """Where Go keeps the sources of a module, which it fetches if they are not there."""
    argv = ["go", "mod", "download", module]
    if not (found := _module_folder(module, folder)).is_dir():
        _run_with_progress(argv, folder, f"fetching {module}")
        found = _module_folder(module, folder)
    return found


def print_status(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def _module_folder(module: str, folder: Path) -> Path:
    argv = ["go", "list", "-m", "-f", "{{.Dir}}", module]
    done = subprocess.run(argv, cwd=folder, env=_go_environment(), capture_output=True, text=True, check=False)
    return Path(done.stdout.strip() or "/nonexistent")


def _unpack(name: str, package: str, path: str) -> None:
    """A launcher in the folder of programs, because the program runs under the loader of its own suite."""
    launcher = PROGRAMS / name
    if launcher.is_file():
        return
    print_status(f"unpacking {package} of Debian {SUITE}")
    words = DebianSuite(SUITE, CACHE / "debian").program(package, path)
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    launcher.chmod(0o755)


def _go_environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


def _run_with_progress(argv: Sequence[str], folder: Path, what: str) -> None:
    """A command that may take minutes, with a line now and then that it still does."""
    if not shutil.which("go"):
        raise MissingRequirement("go is not there: install Go 1.26 or newer (https://go.dev/dl)")
    began = time.monotonic()
    print_status(what)
    with subprocess.Popen(
        ["nice", *argv], cwd=folder, env=_go_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        while True:
            try:
                output, _ = running.communicate(timeout=STATUS_SECONDS)
                break
            except subprocess.TimeoutExpired:
                print_status(f"{what}: {time.monotonic() - began:.0f} s, about 5 minutes for all of it on two cores")
    if running.returncode != 0:
        raise MissingRequirement(f"`{' '.join(argv)}` in {folder} failed: {output.strip()[-2000:]}")
