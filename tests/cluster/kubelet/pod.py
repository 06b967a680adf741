"""A pod from its binding to its end: network, volumes, containers in their order, and how all of it is ended."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from lab.testbed.cgroups import ControlGroup
from tests.cluster.api import Object
from tests.cluster.kubelet import status
from tests.cluster.kubelet.container import Container, Kind, Surroundings
from tests.cluster.kubelet.contents import Contents
from tests.cluster.kubelet.environment import NotYet
from tests.cluster.kubelet.events import Events
from tests.cluster.kubelet.moment import now
from tests.cluster.kubelet.reporter import Reporter
from tests.cluster.kubelet.sandbox import Addresses, NodesOwn, Sandbox, SandboxFailed
from tests.cluster.kubelet.status import Facts
from tests.cluster.kubelet.volumes import Sources, Volumes
from tests.cluster.places import Node

# How long a pod sleeps when nothing is to happen; tokens are renewed when it wakes.
LONGEST_SLEEP_SECONDS = 60.0
RETRY_SECONDS = 1.0
# Beside the groups of containers, whose names have no dots.
NETWORK_GROUP = "pod.network"


@dataclass(frozen=True)
class Home:
    """What all pods of a node share."""

    node: Node
    group: ControlGroup
    addresses: Addresses
    contents: Contents
    reporter: Reporter
    events: Events


class Pod(threading.Thread):
    """One thread that moves it forward; containers and whoever sees changes poke it."""

    def __init__(self, pod: Object, home: Home) -> None:
        super().__init__(daemon=True)
        self.object = pod
        self.uid: str = pod["metadata"]["uid"]
        self._home = home
        self._folder = home.node.folder / "pods" / self.uid
        self._group = home.group.child(self.uid)
        self._facts = Facts(pod.get("status", {}).get("startTime") or now(), home.node.addresses)
        self._facts.conditions = {known["type"]: known for known in pod.get("status", {}).get("conditions", [])}
        self.containers = _containers(pod)
        self._facts.initialized = not self._of_kind("init", "sidecar")
        for container in self._of_kind("main") if not self._facts.initialized else []:
            container.waits("PodInitializing")
        self._sandbox: Sandbox | NodesOwn | None = None
        self._around: Surroundings | None = None
        self._stopper: threading.Thread | None = None
        self._wake = threading.Event()
        self._gone = False
        self._awaited = ""
        self._has_volumes = False
        self.over = threading.Event()

    def offer(self, pod: Object) -> None:
        """A newer version of its object."""
        self.object = pod
        self.poke()

    def forget(self) -> None:
        """Its object is gone: nobody waits for a grace."""
        self._gone = True
        for container in self.containers:
            threading.Thread(target=container.kill, daemon=True).start()
        self.poke()

    def poke(self) -> None:
        self._wake.set()

    def container(self, name: str) -> Container | None:
        return next((container for container in self.containers if container.name == name), None)

    def run(self) -> None:
        while not self.over.is_set():
            pause = LONGEST_SLEEP_SECONDS
            try:
                pause = self._advance()
            except (NotYet, SandboxFailed) as error:
                self._tell_why(error)
                pause = RETRY_SECONDS
            except Exception:
                # One pod's trouble is not the node's.
                print(f"{self._called()}: {traceback.format_exc()}", flush=True)
                pause = RETRY_SECONDS
            if not self.over.is_set():
                self._report()
                self._wake.wait(pause)
                self._wake.clear()

    def _advance(self) -> float:
        """Does what can be done now; how long nothing more is to do unless something happens."""
        if self._gone or "deletionTimestamp" in self.object["metadata"]:
            return self._end()
        if self._facts.over:
            self._give_network_back()
            return LONGEST_SLEEP_SECONDS
        around = self._prepared()
        self._refresh(around.volumes)
        pause = self._start_first(around)
        if self._facts.initialized:
            pause = min(pause, self._start_main(around))
        return pause

    def _prepared(self) -> Surroundings:
        """Its network and folders, made if they are not there."""
        if self._around is not None:
            return self._around
        self._group.create()
        self._group.delegate_controllers()
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        spec = self.object["spec"]
        if self._sandbox is None:
            if spec.get("hostNetwork"):
                self._sandbox = NodesOwn(self._home.node)
            else:
                self._sandbox = Sandbox(
                    self._home.node, self._group.child(NETWORK_GROUP).create(), self._home.addresses
                )
        self._facts.addresses = self._sandbox.addresses
        self._facts.has_sandbox = True
        addresses = self._named_addresses(self._sandbox.addresses)
        contents = self._home.contents
        sources = Sources(
            contents.data, lambda audience, seconds: contents.token(self.object, audience, seconds), addresses
        )
        volumes = Volumes(self._folder / "volumes", sources)
        self._around = Surroundings(
            pod=lambda: self.object,
            folder=self._folder,
            group=self._group,
            network=self._sandbox.namespace,
            addresses=addresses,
            data=contents.data,
            volumes=volumes,
            poke=self.poke,
            tell=self._tell,
        )
        return self._around

    def _refresh(self, volumes: Volumes) -> None:
        """What has been there once stays as it was if its source goes."""
        try:
            volumes.refresh(self.object)
        except NotYet as error:
            if not self._has_volumes:
                raise
            self._tell_why(error)
        self._has_volumes = True

    def _start_first(self, around: Surroundings) -> float:
        """Init containers one after the other; a sidecar has only to have started."""
        for container in self._of_kind("init", "sidecar"):
            if container.kind == "init" and container.exit_code == 0:
                continue
            pause = self._start(container, around)
            done = container.kind == "sidecar" and container.started
            if self._facts.over or not (done or self._facts.initialized):
                return pause
        self._facts.initialized = True
        return LONGEST_SLEEP_SECONDS

    def _start_main(self, around: Surroundings) -> float:
        main = self._of_kind("main")
        pauses = [self._start(container, around) for container in main]
        policy = self.object["spec"].get("restartPolicy", "Always")
        if all(container.exit_code is not None and not container.may_begin_again(policy) for container in main):
            self._finish()
        return min(pauses)

    def _start(self, container: Container, around: Surroundings) -> float:
        """Begins a container if it is to run and does not; how long until it may."""
        if container.running:
            return LONGEST_SLEEP_SECONDS
        policy = self.object["spec"].get("restartPolicy", "Always")
        if container.exit_code is not None and not container.may_begin_again(policy):
            # An init container that failed for good is the end of the pod.
            if container.kind == "init":
                self._finish()
            return LONGEST_SLEEP_SECONDS
        left = container.begins_at - time.monotonic()
        if left > 0:
            if "terminated" in container.state:
                metadata = self.object["metadata"]
                named = f"container={container.name} pod={metadata['name']}_{metadata['namespace']}({self.uid})"
                message = f"back-off {left:.0f}s restarting failed {named}"
                self._tell("BackOff", message)
                container.waits("CrashLoopBackOff", message)
            return left
        container.begin(around)
        return RETRY_SECONDS if "waiting" in container.state else LONGEST_SLEEP_SECONDS

    def _finish(self) -> None:
        """Its containers have ended for good, but for sidecars."""
        self._facts.over = True
        self._stop_in_background(0.0)

    def _end(self) -> float:
        """Ends everything, and when everything has ended, the pod."""
        metadata = self.object["metadata"]
        grace = 0.0 if self._gone else float(metadata.get("deletionGracePeriodSeconds", 30))
        if self._stopper is None:
            self._stop_in_background(grace)
        if self._stopper is not None and self._stopper.is_alive():
            return LONGEST_SLEEP_SECONDS
        self._facts.over = True
        self._remove()
        self._home.reporter.tell(self.object, self._status(), final=True)
        self.over.set()
        return 0.0

    def _stop_in_background(self, grace: float) -> None:
        around = self._around
        if around is None:
            return
        for container in self.containers:
            container.end_probes(but_readiness=True)
        self._stopper = threading.Thread(target=self._stop, args=(grace, around), daemon=True)
        self._stopper.start()

    def _stop(self, grace: float, around: Surroundings) -> None:
        """The main containers side by side, then the sidecars, the last one first."""
        deadline = time.monotonic() + grace
        stopping = [
            threading.Thread(target=container.stop, args=(grace, around), daemon=True)
            for container in self._of_kind("main", "init")
        ]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        for container in reversed(self._of_kind("sidecar")):
            container.stop(max(deadline - time.monotonic(), 0.0), around)
        # The thread of a pod looks at whether this one is alive.
        threading.Timer(0.01, self.poke).start()

    def _give_network_back(self) -> None:
        """When nothing runs in it any more."""
        if self._sandbox is not None and not (self._stopper and self._stopper.is_alive()):
            self._sandbox.remove()
            self._sandbox = None
            self._facts.has_sandbox = False

    def _remove(self) -> None:
        self._give_network_back()
        self._group.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell_why(self, error: Exception) -> None:
        """What has to be waited for, once."""
        if str(error) != self._awaited:
            self._awaited = str(error)
            self._tell("FailedMount", str(error))

    def _tell(self, reason: str, message: str) -> None:
        self._home.events.tell(self.object, reason, message)

    def _report(self) -> None:
        self._home.reporter.tell(self.object, self._status())

    def _status(self) -> Object:
        return status.of(self.object, self.containers, self._facts)

    def _of_kind(self, *kinds: Kind) -> list[Container]:
        return [container for container in self.containers if container.kind in kinds]

    def _named_addresses(self, addresses: Sequence[str]) -> dict[str, str]:
        """By the names that fields have."""
        spec = self.object["spec"]
        hosts = self._home.node.addresses
        hostname = (
            self._home.node.name if spec.get("hostNetwork") else spec.get("hostname", self.object["metadata"]["name"])
        )
        return {
            "hostname": hostname[:63].rstrip("-."),
            "status.podIP": addresses[0],
            "status.podIPs": ",".join(addresses),
            "status.hostIP": hosts[0],
            "status.hostIPs": ",".join(hosts),
        }

    def _called(self) -> str:
        metadata = self.object["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"


def _containers(pod: Object) -> list[Container]:
    """As the object has them; lives that were before this kubelet count on."""
    said = pod.get("status", {})
    before = {
        known["name"]: known["restartCount"] + ("waiting" not in known["state"])
        for known in [*said.get("initContainerStatuses", []), *said.get("containerStatuses", [])]
    }
    first = [
        Container(spec, "sidecar" if spec.get("restartPolicy") == "Always" else "init", before.get(spec["name"], 0))
        for spec in pod["spec"].get("initContainers", [])
    ]
    return [*first, *(Container(spec, "main", before.get(spec["name"], 0)) for spec in pod["spec"]["containers"])]
