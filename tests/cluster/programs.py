"""Programs of a cluster, built once from Go modules or unpacked from Debian packages."""

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
KARPENTER_MODULE = FOLDER / "karpenter"
COREDNS = GATEWAY_API / "coredns"
ECHO_ADVANCED = GATEWAY_API / "echo-advanced"
KEDA = FOLDER / "keda"
KEDA_MODULE = "github.com/kedacore/keda/v2"
ISTIO = "istio.io/istio"
# Interval of progress lines during builds of several minutes.
STATUS_SECONDS = 30.0


@dataclass(frozen=True)
class GoProgram:
    """A program from a Go module, in the version of the folder's `go.mod`."""

    name: str
    module: Path
    package: str
    subcommand: Sequence[str] = ("build",)
    ldflags: str = "-s -w"
    # Module that `module` requires, if its folder is the place of the build: its own requirements then apply.
    within: str = ""

    @property
    def path(self) -> Path:
        return PROGRAMS / self.name

    def make(self) -> None:
        """Builds the program if the `go.mod` or our source has changed; Go's own check would take a second."""
        stamp = PROGRAMS / f".{self.name}.go.mod"
        wanted = (self.module / "go.mod").read_bytes() + self._own_source()
        if self.path.is_file() and stamp.is_file() and stamp.read_bytes() == wanted:
            return
        argv = ["go", *self.subcommand, "-trimpath", "-ldflags", self.ldflags, "-o", str(self.path), self.package]
        folder = module_folder(self.within, self.module) if self.within else self.module
        _run_with_progress(argv, folder, f"building {self.name}")
        stamp.write_bytes(wanted)

    def _own_source(self) -> bytes:
        """Returns the source of a package of this repository."""
        if self.within or not self.package.startswith("."):
            return b""
        return b"".join(path.read_bytes() for path in sorted((self.module / self.package).glob("*.go")))


def version_of(module: str, folder: Path) -> str:
    """Returns the version of a module that a `go.mod` requires."""
    for line in (folder / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == [module]:
            return words[1]
    raise MissingRequirement(f"{folder}/go.mod does not require {module}")


def _version_flags() -> str:
    """Returns linker flags with the version; without them Kubernetes reports v0.0.0, which clients believe."""
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
EXEC_STREAM = GoProgram("exec-stream", FOLDER / "kubelet" / "exec-stream", ".")
ECHO = GoProgram("echo-basic", GATEWAY_API, "sigs.k8s.io/gateway-api/conformance/echo-basic")
SUITE_OF_GATEWAY_API = GoProgram(
    "conformance.test", GATEWAY_API, "sigs.k8s.io/gateway-api/conformance", subcommand=("test", "-c", "-vet=off")
)
LIST_OF_SUITE = GoProgram("conformance-list", GATEWAY_API, "./list")
# The image of the mesh tests' pods, which are clients and servers.
MESH_PROGRAMS = tuple(
    GoProgram(f"echo-advanced-{name}", ECHO_ADVANCED, f"{ISTIO}/pkg/test/echo/cmd/{name}")
    for name in ("client", "server")
)
# A pod that the suite waits for before its tests; mesh tests use it as the cluster's DNS.
COREDNS_SERVER = GoProgram("coredns", COREDNS, "github.com/coredns/coredns")
# KEDA's operator, and its server of external metrics for autoscalers.
KEDA_PROGRAMS = (
    GoProgram("keda", KEDA, "./cmd/operator", within=KEDA_MODULE),
    GoProgram("keda-adapter", KEDA, "./cmd/adapter", within=KEDA_MODULE),
)

# The autoscaler of nodes, whose machines `machines.py` starts; only tests of it build it.
KARPENTER = GoProgram("karpenter", KARPENTER_MODULE, ".")

# Debian packages, and the path of the program in each. The package of Kubernetes' clients has an exact version.
PACKAGES = {
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "kubectl": ("kubectl=1.36.4+ds-1", "usr/bin/kubectl"),
}


def make() -> None:
    """Builds and unpacks all programs of a cluster."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for name, (package, path) in PACKAGES.items():
        _unpack(name, package, path)
    for program in (*CONTROL_PLANE, EXEC_STREAM, ECHO):
        program.make()


def make_suite() -> None:
    """Builds further programs for the Gateway API's conformance tests."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for program in (LIST_OF_SUITE, ECHO, COREDNS_SERVER, *MESH_PROGRAMS, SUITE_OF_GATEWAY_API):
        program.make()
    certificates = module_folder(ISTIO, ECHO_ADVANCED) / "tests" / "testdata" / "certs"
    for suffix in (".crt", ".key"):
        shutil.copyfile(certificates / f"cert{suffix}", PROGRAMS / f"echo-advanced{suffix}")


def make_keda() -> None:
    """Builds further programs for a cluster with KEDA, which finds its own server by the cluster's DNS."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for program in (COREDNS_SERVER, *KEDA_PROGRAMS):
        program.make()


def keda_manifests() -> Path:
    """Returns the folder of KEDA's own manifests."""
    return module_folder(KEDA_MODULE, KEDA) / "config"


def missing() -> list[str]:
    """Returns the names of missing programs."""
    names = [*PACKAGES, *(program.name for program in (*CONTROL_PLANE, EXEC_STREAM, ECHO))]
    return [name for name in names if not (PROGRAMS / name).is_file()]


def module_folder(module: str, folder: Path) -> Path:
    """Returns the folder of a module's source, which Go fetches if it is missing."""
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
    """Writes a launcher into the folder of programs, because the program runs under its suite's loader."""
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
    """Runs a command of several minutes, and prints progress lines."""
    if not shutil.which("go"):
        raise MissingRequirement("go is not installed: install Go 1.26 or newer (https://go.dev/dl)")
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
                print_status(
                    f"{what}: {time.monotonic() - began:.0f} s, a whole build takes about 5 minutes on two cores"
                )
    if running.returncode != 0:
        raise MissingRequirement(f"`{' '.join(argv)}` in {folder} failed: {output.strip()[-2000:]}")
