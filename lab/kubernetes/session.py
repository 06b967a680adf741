"""Session of an experiment with the test cluster, which it starts and removes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from lab.child import ChildFailed
from lab.kubernetes import containers
from lab.paths import MissingRequirement
from tests.cluster import cluster, programs
from tests.cluster.api import Api, Object
from tests.cluster.cluster import ClusterExists
from tests.cluster.layout import IMAGES, KUBECONFIG, LOGS, PROGRAMS
from tests.cluster.network import NetworkError
from tests.cluster.processes import ProcessDied, top_group

KUBECTL_SECONDS = 60
POLL_SECONDS = 0.05


def obstacle() -> str | None:
    """Returns the reason why an experiment cannot have the test cluster, or None."""
    if reason := cluster.obstacle():
        return f"no test cluster: {reason}"
    if missing := programs.missing():
        return f"the test cluster is not built ({', '.join(missing)}): run `scripts/python -m tests.cluster build`"
    if cluster.exists():
        return "there is a test cluster already, and an experiment needs a new one: run `make cluster-down`"
    return None


def version() -> str:
    """Returns the version of Kubernetes."""
    return programs.version_of("k8s.io/kubernetes", programs.KUBERNETES).removeprefix("v")


class ClusterSession:
    """A cluster that is ready."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """Runs kubectl; returns its output."""
        argv = [str(PROGRAMS / "kubectl"), "--kubeconfig", str(KUBECONFIG), *words]
        try:
            done = subprocess.run(
                argv, input=text, capture_output=True, text=True, check=False, timeout=KUBECTL_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise ChildFailed(f"kubectl {' '.join(words)} did not end within {KUBECTL_SECONDS} s") from error
        if done.returncode != 0:
            raise ChildFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Object) -> None:
        """Creates or changes objects."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--filename", "-", text=json.dumps(listing))

    def pods(self, app: str) -> list[Object]:
        """Returns the pods with the label `app`."""
        return self.api.get("/api/v1/namespaces/default/pods", labelSelector=f"app={app}")["items"]

    def wait_until_gone(self, app: str, seconds: float) -> None:
        """Waits until no pod has the label `app`."""
        wait(lambda: not self.pods(app), f"the end of the pods of {app}", seconds)

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the cluster and of this process."""
        return top_group().cpu_seconds() + time.process_time()


@contextmanager
def open_session(logs: Path) -> Iterator[ClusterSession]:
    """Starts a cluster and yields a session with it; afterwards keeps its logs in a folder, and removes it."""
    try:
        cluster.up()
    except (ClusterExists, NetworkError, ProcessDied) as error:
        raise MissingRequirement(f"no test cluster: {error}") from error
    try:
        IMAGES.write_text(containers.IMAGES)
        with closing(Api(KUBECONFIG)) as api:
            yield ClusterSession(api)
    finally:
        # Another command may have removed the cluster.
        with suppress(OSError):
            shutil.copytree(LOGS, logs / "cluster", dirs_exist_ok=True)
        cluster.down()


def wait(ready: Callable[[], object], what: str, seconds: float) -> None:
    """Polls until `ready()` returns a true value."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ChildFailed(f"{what} did not come within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
