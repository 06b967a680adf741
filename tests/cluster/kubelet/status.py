"""A pod's status in the API's format, from its containers; pure except for timestamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.cluster.api import Object
from tests.cluster.kubelet.container import Container
from tests.cluster.kubelet.timestamp import now


@dataclass
class PodState:
    """State of a pod besides its containers."""

    start_time: str
    host_addresses: Sequence[str]
    addresses: Sequence[str] = ()
    has_sandbox: bool = False
    initialized: bool = False
    stopping: bool = False
    # True if the containers have ended and do not restart.
    ended: bool = False
    message: str = ""
    # Previous conditions, to preserve their transition times.
    conditions: dict[str, Object] = field(default_factory=dict)


@dataclass(frozen=True)
class ConditionResult:
    """Value of a condition, with its reason."""

    holds: bool
    reason: str = ""
    message: str = ""


def pod_status(pod: Object, containers: Sequence[Container], facts: PodState) -> Object:
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


def phase(main: Sequence[Container], facts: PodState) -> str:
    if facts.ended:
        return "Succeeded" if all(container.exit_code == 0 for container in main) else "Failed"
    if facts.initialized and any(container.running or container.last_state for container in main):
        return "Running"
    return "Pending"


def _conditions(
    pod: Object, main: Sequence[Container], first: Sequence[Container], facts: PodState, generation: int
) -> list[Object]:
    lacking = [container for container in [*main, *first] if container.kind != "init" and not container.ready]
    unready = _ready_condition(
        not lacking, facts, main, "ContainersNotReady", f"containers with unready status: {_names(lacking)}"
    )
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])]
    reported = {condition["type"]: condition["status"] for condition in pod.get("status", {}).get("conditions", [])}
    closed = [gate for gate in gates if reported.get(gate) != "True"]
    not_ready = (
        unready
        if lacking or facts.ended
        else ConditionResult(not closed, "ReadinessGatesNotReady", f"not true: {closed}")
    )
    undone = [container for container in first if container.kind == "init" and container.exit_code != 0]
    incomplete = f"containers with incomplete status: {_names(undone)}"
    initialized = ConditionResult(facts.initialized, "ContainersNotInitialized", incomplete)
    if facts.ended and facts.initialized:
        initialized = ConditionResult(True, *_completed_reason(main))
    results = {
        "PodReadyToStartContainers": ConditionResult(facts.has_sandbox),
        "Initialized": initialized,
        "Ready": not_ready,
        "ContainersReady": unready,
        "PodScheduled": ConditionResult(True),
    }
    return [_condition(kind, result, facts.conditions, generation) for kind, result in results.items()]


def _ready_condition(
    holds: bool, facts: PodState, main: Sequence[Container], reason: str, message: str
) -> ConditionResult:
    """Returns the condition; nothing of an ended pod is ready."""
    return ConditionResult(False, *_completed_reason(main)) if facts.ended else ConditionResult(holds, reason, message)


def _completed_reason(main: Sequence[Container]) -> tuple[str, str]:
    succeeded = all(container.exit_code == 0 for container in main)
    return ("PodCompleted" if succeeded else "PodFailed"), ""


def _names(containers: Sequence[Container]) -> str:
    """Formats names like a Go list."""
    return f"[{' '.join(container.name for container in containers)}]"


def _condition(kind: str, result: ConditionResult, before: dict[str, Object], generation: int) -> Object:
    value = "True" if result.holds else "False"
    known = before.get(kind)
    moment = known["lastTransitionTime"] if known and known["status"] == value else now()
    condition = {"type": kind, "status": value, "lastTransitionTime": moment, "observedGeneration": generation}
    # Patches are merged, so an omitted field must be reset explicitly.
    reported = not result.holds or result.reason == "PodCompleted"
    condition |= {"reason": reported and result.reason or None, "message": reported and result.message or None}
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
    """Replaces the list, because it is merged otherwise and a restarted pod would keep old addresses."""
    return [{"$patch": "replace"}, *({"ip": address} for address in addresses)]
