"""CRDs of the Gateway API's standard channel, from its Go module."""

from __future__ import annotations

import subprocess

from lab.paths import MissingRequirement
from tests.cluster.layout import KUBECONFIG, PROGRAMS
from tests.cluster.programs import GATEWAY_API, module_folder

MODULE = "sigs.k8s.io/gateway-api"
ESTABLISHED = "condition=Established"
PATIENCE_SECONDS = 60


def install() -> None:
    folder = module_folder(MODULE, GATEWAY_API) / "config" / "crd" / "standard"
    # The annotation of a client-side apply would exceed the API's limit.
    kubectl("apply", "--server-side", "--filename", folder)
    names = [line.removeprefix("customresourcedefinition.apiextensions.k8s.io/") for line in _crds()]
    kubectl("wait", f"--for={ESTABLISHED}", f"--timeout={PATIENCE_SECONDS}s", "crd", *names)


def kubectl(*words: object) -> str:
    argv = [PROGRAMS / "kubectl", f"--kubeconfig={KUBECONFIG}", *words]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingRequirement(f"`kubectl {' '.join(map(str, words))}` failed: {done.stderr.strip()}")
    return done.stdout


def _crds() -> list[str]:
    lines = kubectl("get", "crd", "--output=name").splitlines()
    return [line for line in lines if line.endswith(".gateway.networking.k8s.io")]
