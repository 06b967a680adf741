"""A pod's status in the words of the API, of what its containers are. Pure, but for the moments of transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.cluster.api import Object
from tests.cluster.kubelet.container import Container
from tests.cluster.kubelet.moment import now


@dataclass
class Facts:
    """What a status is made of beside the containers."""

    start_time: str
    host_addresses: Sequence[str]
    addresses: Sequence[str] = ()
    has_sandbox: bool = False
    initialized: bool = False
    stopping: bool = False
    # Its containers have ended and do not begin again.
    over: bool = False
    message: str = ""
    # What conditions were, so that the moment of their last transition lasts.
    conditions: dict[str, Object] = field(default_factory=dict)


def of(pod: Object, containers: Sequence[Container], facts: Facts) -> Object:
    first = [container for container in containers if container.kind != "main"]
    main = [container for container in containers if container.kind == "main"]
    generation = pod["metadata"].get("generation", 0)
    status: Object = {
        "phase": phase(main, facts),
        "observedGeneration": generation,
        "startTime": facts.start_time,
        "hostIP": facts.host_addresses[0],
        "hostIPs": _addresses(facts.host_addresses),
        "conditions": _conditions(pod, main, first, facts, generation),
        "containerStatuses": [_container(container, pod) for container in main],
    }
    if facts.addresses:
        status |= {"podIP": facts.addresses[0], "podIPs": _addresses(facts.addresses)}
    if first:
        status["initContainerStatuses"] = [_container(container, pod) for container in first]
    if facts.message:
        status["message"] = facts.message
    return status


def phase(main: Sequence[Container], facts: Facts) -> str:
    if facts.over:
        return "Succeeded" if all(container.exit_code == 0 for container in main) else "Failed"
    if facts.initialized and any(container.running or container.last_state for container in main):
        return "Running"
    return "Pending"


def _conditions(
    pod: Object, main: Sequence[Container], first: Sequence[Container], facts: Facts, generation: int
) -> list[Object]:
    unready = [container.name for container in main if not container.ready]
    sidecars = [container.name for container in first if container.kind == "sidecar" and not container.ready]
    lacking = unready + sidecars
    reason = (
        ("PodCompleted", "") if facts.over else ("ContainersNotReady", f"containers with unready status: {lacking}")
    )
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])]
    said = {condition["type"]: condition["status"] for condition in pod.get("status", {}).get("conditions", [])}
    closed = [gate for gate in gates if said.get(gate) != "True"]
    ready_reason = reason if lacking or facts.over else ("ReadinessGatesNotReady", f"not true: {closed}")
    uninitialized = ("ContainersNotInitialized", "") if not facts.initialized else ("", "")
    values = {
        "PodReadyToStartContainers": (facts.has_sandbox, ("", "")),
        "Initialized": (facts.initialized, uninitialized),
        "Ready": (not lacking and not closed and not facts.over, ready_reason),
        "ContainersReady": (not lacking and not facts.over, reason),
        "PodScheduled": (True, ("", "")),
    }
    return [_condition(kind, *value, facts.conditions, generation) for kind, value in values.items()]


def _condition(kind: str, holds: bool, reason: tuple[str, str], before: dict[str, Object], generation: int) -> Object:
    value = "True" if holds else "False"
    known = before.get(kind)
    moment = known["lastTransitionTime"] if known and known["status"] == value else now()
    condition = {"type": kind, "status": value, "lastTransitionTime": moment, "observedGeneration": generation}
    # Patches are merged: what is not said any more has to be taken back.
    condition |= {"reason": None, "message": None}
    if not holds:
        condition |= {"reason": reason[0] or None, "message": reason[1] or None}
    before[kind] = condition
    return condition


def _container(container: Container, pod: Object) -> Object:
    return {
        "name": container.name,
        "image": container.spec["image"],
        "imageID": container.image_id,
        "containerID": container.container_id,
        "ready": container.ready or (container.kind == "init" and container.exit_code == 0),
        "started": container.started,
        "restartCount": container.restarts,
        "state": container.state,
        "lastState": container.last_state if container.last_state != container.state else {},
    }


def _addresses(addresses: Sequence[str]) -> list[Mapping[str, str]]:
    """In place of those that were: they are merged otherwise, and a pod that begins anew would keep old ones."""
    return [{"$patch": "replace"}, *({"ip": address} for address in addresses)]
