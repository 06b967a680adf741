"""A pod from its binding to its end: network, volumes, ordered containers, and termination."""

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
from tests.cluster.kubelet.container import Container, Kind, PodContext
from tests.cluster.kubelet.contents import ApiContents
from tests.cluster.kubelet.environment import MissingSource
from tests.cluster.kubelet.events import EventRecorder
from tests.cluster.kubelet.reporter import StatusReporter
from tests.cluster.kubelet.resource_metrics import RunningContainer
from tests.cluster.kubelet.sandbox import AddressPool, HostNetwork, Sandbox, SandboxFailed
from tests.cluster.kubelet.status import PodState
from tests.cluster.kubelet.timestamp import now
from tests.cluster.kubelet.volumes import Volumes, VolumeSources
from tests.cluster.layout import Node

# Longest sleep of an idle pod; it renews tokens when it wakes.
LONGEST_SLEEP_SECONDS = 60.0
RETRY_SECONDS = 1.0
# Group beside those of containers, whose names have no dots.
NETWORK_GROUP = "pod.network"


@dataclass(frozen=True)
class NodeContext:
    """Common context of all pods of a node."""

    node: Node
    group: ControlGroup
    addresses: AddressPool
    contents: ApiContents
    reporter: StatusReporter
    events: EventRecorder


class Pod(threading.Thread):
    """Thread that advances a pod; containers and watches wake it."""

    def __init__(self, pod: Object, node_context: NodeContext) -> None:
        super().__init__(daemon=True)
        self.object = pod
        self.uid: str = pod["metadata"]["uid"]
        self._node_context = node_context
        self._folder = node_context.node.folder / "pods" / self.uid
        self._group = node_context.group.child(self.uid)
        self._facts = PodState(pod.get("status", {}).get("startTime") or now(), node_context.node.addresses)
        self._facts.conditions = {known["type"]: known for known in pod.get("status", {}).get("conditions", [])}
        self.containers = _containers(pod)
        self._facts.initialized = not self._containers_of_kind("init", "sidecar")
        for container in self._containers_of_kind("main") if not self._facts.initialized else []:
            container.set_waiting("PodInitializing")
        self._sandbox: Sandbox | HostNetwork | None = None
        self._pod_context: PodContext | None = None
        self._stopper: threading.Thread | None = None
        self._wake = threading.Event()
        self._gone = False
        self._last_wait_reason = ""
        self._has_volumes = False
        self.ended = threading.Event()

    def update(self, pod: Object) -> None:
        """Accepts a newer version of the object."""
        self.object = pod
        self.wake()

    def delete(self) -> None:
        """Kills the containers without a grace period, because the object is gone."""
        self._gone = True
        for container in self.containers:
            threading.Thread(target=container.kill, daemon=True).start()
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    def running_containers(self) -> list[RunningContainer]:
        """Returns the containers that run now."""
        metadata = self.object["metadata"]
        running = [container for container in self.containers if container.running]
        return [
            RunningContainer(metadata["namespace"], metadata["name"], it.name, self._group.child(it.name), it.began)
            for it in running
        ]

    def container(self, name: str) -> Container | None:
        return next((container for container in self.containers if container.name == name), None)

    def run(self) -> None:
        while not self.ended.is_set():
            pause = LONGEST_SLEEP_SECONDS
            try:
                pause = self._advance()
            except (MissingSource, SandboxFailed) as error:
                self._report_wait(error)
                pause = RETRY_SECONDS
            except Exception:
                # A failure of one pod must not affect the node.
                print(f"{self._full_name()}: {traceback.format_exc()}", flush=True)
                pause = RETRY_SECONDS
            if not self.ended.is_set():
                self._report()
                self._wake.wait(pause)
                self._wake.clear()

    def _advance(self) -> float:
        """Does what is possible now; returns the seconds until the next attempt."""
        if self._gone or "deletionTimestamp" in self.object["metadata"]:
            return self._end()
        if self._facts.ended:
            self._release_network()
            return LONGEST_SLEEP_SECONDS
        context = self._prepare()
        self._refresh(context.volumes)
        pause = self._start_init_containers(context)
        if self._facts.initialized:
            pause = min(pause, self._start_main_containers(context))
        return pause

    def _prepare(self) -> PodContext:
        """Creates the pod's network and folders if they are missing."""
        if self._pod_context is not None:
            return self._pod_context
        self._group.create()
        self._group.delegate_controllers()
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        spec = self.object["spec"]
        if self._sandbox is None:
            if spec.get("hostNetwork"):
                self._sandbox = HostNetwork(self._node_context.node)
            else:
                self._sandbox = Sandbox(
                    self._node_context.node, self._group.child(NETWORK_GROUP).create(), self._node_context.addresses
                )
        self._facts.addresses = self._sandbox.addresses
        self._facts.has_sandbox = True
        addresses = self._addresses_by_field(self._sandbox.addresses)
        contents = self._node_context.contents
        sources = VolumeSources(
            contents.data, lambda audience, seconds: contents.token(self.object, audience, seconds), addresses
        )
        volumes = Volumes(self._folder / "volumes", sources)
        self._pod_context = PodContext(
            pod=lambda: self.object,
            folder=self._folder,
            group=self._group,
            network=self._sandbox.namespace,
            addresses=addresses,
            data=contents.data,
            volumes=volumes,
            wake=self.wake,
            record_event=self._record_event,
        )
        return self._pod_context

    def _refresh(self, volumes: Volumes) -> None:
        """Refreshes the volumes; an existing volume keeps its content if its source disappears."""
        try:
            volumes.refresh(self.object)
        except MissingSource as error:
            if not self._has_volumes:
                raise
            self._report_wait(error)
        self._has_volumes = True

    def _start_init_containers(self, context: PodContext) -> float:
        """Runs the init containers in order; a sidecar only has to have started."""
        for container in self._containers_of_kind("init", "sidecar"):
            if container.kind == "init" and container.exit_code == 0:
                continue
            pause = self._start(container, context)
            done = container.kind == "sidecar" and container.started
            if self._facts.ended or not (done or self._facts.initialized):
                return pause
        self._facts.initialized = True
        return LONGEST_SLEEP_SECONDS

    def _start_main_containers(self, context: PodContext) -> float:
        main = self._containers_of_kind("main")
        pauses = [self._start(container, context) for container in main]
        policy = self.object["spec"].get("restartPolicy", "Always")
        if all(container.exit_code is not None and not container.should_restart(policy) for container in main):
            self._finish()
        return min(pauses)

    def _start(self, container: Container, context: PodContext) -> float:
        """Starts a container if it should run; returns the seconds until the next attempt."""
        if container.running:
            return LONGEST_SLEEP_SECONDS
        policy = self.object["spec"].get("restartPolicy", "Always")
        if container.exit_code is not None and not container.should_restart(policy):
            # A permanent failure of an init container ends the pod.
            if container.kind == "init":
                self._finish()
            return LONGEST_SLEEP_SECONDS
        left = container.starts_at - time.monotonic()
        if left > 0:
            if "terminated" in container.state:
                metadata = self.object["metadata"]
                identified = f"container={container.name} pod={metadata['name']}_{metadata['namespace']}({self.uid})"
                message = f"back-off {left:.0f}s restarting failed {identified}"
                self._record_event("BackOff", message)
                container.set_waiting("CrashLoopBackOff", message)
            return left
        container.start(context)
        return RETRY_SECONDS if "waiting" in container.state else LONGEST_SLEEP_SECONDS

    def _finish(self) -> None:
        """Ends the pod after the permanent end of its containers, except sidecars."""
        self._facts.ended = True
        self._stop_in_background(0.0)

    def _end(self) -> float:
        """Stops everything, then removes the pod."""
        metadata = self.object["metadata"]
        grace = 0.0 if self._gone else float(metadata.get("deletionGracePeriodSeconds", 30))
        if self._stopper is None:
            self._stop_in_background(grace)
        if self._stopper is not None and self._stopper.is_alive():
            return LONGEST_SLEEP_SECONDS
        self._facts.ended = True
        self._remove()
        self._node_context.reporter.submit(self.object, self._status(), final=True)
        self.ended.set()
        return 0.0

    def _stop_in_background(self, grace: float) -> None:
        context = self._pod_context
        if context is None:
            return
        for container in self.containers:
            container.end_probes(but_readiness=True)
        self._stopper = threading.Thread(target=self._stop, args=(grace, context), daemon=True)
        self._stopper.start()

    def _stop(self, grace: float, context: PodContext) -> None:
        """Stops the main containers concurrently, then the sidecars in reverse order."""
        deadline = time.monotonic() + grace
        stopping = [
            threading.Thread(target=container.stop, args=(grace, context), daemon=True)
            for container in self._containers_of_kind("main", "init")
        ]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        for container in reversed(self._containers_of_kind("sidecar")):
            container.stop(max(deadline - time.monotonic(), 0.0), context)
        # The pod's thread checks whether this thread is alive.
        threading.Timer(0.01, self.wake).start()

    def _release_network(self) -> None:
        """Releases the network when no container runs."""
        if self._sandbox is not None and not (self._stopper and self._stopper.is_alive()):
            self._sandbox.remove()
            self._sandbox = None
            self._facts.has_sandbox = False

    def _remove(self) -> None:
        self._release_network()
        self._group.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _report_wait(self, error: Exception) -> None:
        """Records a reason for waiting once."""
        if str(error) != self._last_wait_reason:
            self._last_wait_reason = str(error)
            self._record_event("FailedMount", str(error))

    def _record_event(self, reason: str, message: str) -> None:
        self._node_context.events.record(self.object, reason, message)

    def _report(self) -> None:
        self._node_context.reporter.submit(self.object, self._status())

    def _status(self) -> Object:
        return status.pod_status(self.object, self.containers, self._facts)

    def _containers_of_kind(self, *kinds: Kind) -> list[Container]:
        return [container for container in self.containers if container.kind in kinds]

    def _addresses_by_field(self, addresses: Sequence[str]) -> dict[str, str]:
        """Returns the addresses by field path."""
        spec = self.object["spec"]
        hosts = self._node_context.node.addresses
        hostname = (
            self._node_context.node.name
            if spec.get("hostNetwork")
            else spec.get("hostname", self.object["metadata"]["name"])
        )
        return {
            "hostname": hostname[:63].rstrip("-."),
            "status.podIP": addresses[0],
            "status.podIPs": ",".join(addresses),
            "status.hostIP": hosts[0],
            "status.hostIPs": ",".join(hosts),
        }

    def _full_name(self) -> str:
        metadata = self.object["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"


def _containers(pod: Object) -> list[Container]:
    """Returns the containers of the object, with the restart counts of an earlier kubelet."""
    status_before = pod.get("status", {})
    before = {
        known["name"]: known["restartCount"] + ("waiting" not in known["state"])
        for known in [*status_before.get("initContainerStatuses", []), *status_before.get("containerStatuses", [])]
    }
    first = [
        Container(spec, "sidecar" if spec.get("restartPolicy") == "Always" else "init", before.get(spec["name"], 0))
        for spec in pod["spec"].get("initContainers", [])
    ]
    return [*first, *(Container(spec, "main", before.get(spec["name"], 0)) for spec in pod["spec"]["containers"])]
