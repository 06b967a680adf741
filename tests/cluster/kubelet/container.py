"""A container of a pod over all its restarts: process specification, probes, termination and backoff."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.testbed.cgroups import ControlGroup
from tests.cluster.api import Object
from tests.cluster.kubelet import environment, images, probes, security
from tests.cluster.kubelet.environment import Data, MissingSource
from tests.cluster.kubelet.images import Image, ImageNotFound
from tests.cluster.kubelet.probes import KINDS, Probe, Target
from tests.cluster.kubelet.process import Process, ProcessSpec
from tests.cluster.kubelet.timestamp import now
from tests.cluster.kubelet.volumes import Volumes

# Back-off of the real kubelet: the first restart is immediate, later ones wait longer and longer.
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 10.0, 300.0
BACKOFF_RESET_SECONDS = 600.0
# Minimum grace after a preStop hook that used the whole grace period.
LEAST_GRACE_SECONDS = 2.0
HOOK_SECONDS = 600.0

Kind = Literal["main", "init", "sidecar"]


@dataclass(frozen=True)
class PodContext:
    """Common context of the containers of a pod."""

    # Returns the current object.
    pod: Callable[[], Object]
    folder: Path
    group: ControlGroup
    network: Path
    addresses: dict[str, str]
    data: Data
    volumes: Volumes
    # Wakes the pod after a change that affects the status or the next container.
    wake: Callable[[], None]
    # Records an event of the pod with a reason and a message.
    record_event: Callable[[str, str], None]


class Container:
    """A container with its state in the API's format."""

    def __init__(self, spec: Object, kind: Kind, restarts: int = 0) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.kind = kind
        self.restarts = restarts
        self.ready = False
        self.started = False
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Object = {}
        self.process: Process | None = None
        self.logs: list[Path] = []
        self.starts_at = 0.0
        self.image_id = ""
        self._backoff = 0.0
        self._began = 0.0
        self._probes: list[Probe] = []
        self._stopping = threading.Lock()

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def began(self) -> float:
        """Start of its process, in seconds since the epoch."""
        return time.time() - (time.monotonic() - self._began)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last run; None if the container runs or has never run."""
        return None if self.running or not self.last_state else self.last_state["terminated"]["exitCode"]

    def set_waiting(self, reason: str, message: str = "") -> None:
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def should_restart(self, policy: str) -> bool:
        """Returns true if the restart policy allows another start."""
        if self.kind == "sidecar" or (policy == "Always" and self.kind == "main"):
            return True
        return policy != "Never" and self.exit_code != 0

    def start(self, context: PodContext) -> None:
        """Starts the container once more. A missing requirement becomes its state, and a later attempt follows."""
        try:
            process_spec = _process_spec(self.spec, context)
        except ImageNotFound as error:
            self._retry_later("ErrImagePull", str(error), context)
            return
        except MissingSource as error:
            self._retry_later("CreateContainerConfigError", str(error), context)
            return
        if self.last_state:
            self.restarts += 1
        run_number = len(self.logs)
        log = context.folder / "logs" / self.name / f"{run_number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.logs.append(log)
        self.image_id = f"program://{process_spec.programs[0]['source']}" if process_spec.programs else "machine:///usr"
        self.ready, self.started = False, False
        self._began = time.monotonic()
        self.state = {"running": {"startedAt": now()}}
        group = context.group.child(self.name).create(_millicores(self.spec))
        self.process = Process(
            process_spec,
            context.network,
            group,
            log,
            context.folder / f"{self.name}.json",
            lambda code: self._end(code, context),
        )
        context.record_event("Started", f"{self.name}: {self.spec['image']}")
        threading.Thread(target=self._run_hook_and_probes, args=(self.process, context), daemon=True).start()

    def stop(self, grace_seconds: float, context: PodContext) -> None:
        """Sends the stop signal, kills the process after the grace period, and returns when it has ended."""
        process = self.process
        if process is None or not process.alive():
            return
        deadline = time.monotonic() + grace_seconds
        process.wait_started()
        with self._stopping:
            hook = (self.spec.get("lifecycle") or {}).get("preStop")
            if hook and process.alive() and grace_seconds > 0:
                if reason := _run_hook(hook, self._target(process, context), grace_seconds):
                    context.record_event("FailedPreStopHook", f"{self.name}: {reason}")
            number = getattr(signal, (self.spec.get("lifecycle") or {}).get("stopSignal", "SIGTERM"))
            process.signal(number)
        left = deadline - time.monotonic()
        if not process.wait(max(left, LEAST_GRACE_SECONDS if grace_seconds > 0 else 0.0)):
            process.kill()
            process.wait(LONGEST_BACKOFF_SECONDS)

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def end_probes(self, *, but_readiness: bool = False) -> None:
        for probe in self._probes:
            if not (but_readiness and probe.name == "readiness"):
                probe.end()

    def _run_hook_and_probes(self, process: Process, context: PodContext) -> None:
        """Runs the postStart hook and then the probes, in a separate thread."""
        if not process.wait_started():
            return
        target = self._target(process, context)
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook and (reason := _run_hook(hook, target, HOOK_SECONDS)):
            context.record_event("FailedPostStartHook", f"{self.name}: {reason}")
            self.stop(_grace(context.pod(), {}), context)
            return
        if "startupProbe" in self.spec:
            self._probe("startup", process, target, context)
        else:
            self._mark_started(process, target, context)

    def _mark_started(self, process: Process, target: Target, context: PodContext) -> None:
        if not process.alive():
            return
        self.started = True
        if "livenessProbe" in self.spec:
            self._probe("liveness", process, target, context)
        if "readinessProbe" in self.spec:
            self._probe("readiness", process, target, context)
        else:
            self.ready = True
        context.wake()

    def _probe(self, kind: str, process: Process, target: Target, context: PodContext) -> None:
        probe_spec = self.spec[KINDS[kind]]

        def on_change(healthy: bool, reason: str) -> None:
            if not process.alive():
                return
            if not healthy:
                context.record_event("Unhealthy", f"{self.name}: {kind.capitalize()} probe failed: {reason}")
            if kind == "readiness":
                self.ready = healthy
                context.wake()
            elif not healthy:
                probe.end()
                context.record_event("Killing", f"{self.name}: failed its {kind} probe and is ended")
                grace = _grace(context.pod(), probe_spec)
                threading.Thread(target=self.stop, args=(grace, context), daemon=True).start()
            elif kind == "startup":
                probe.end()
                self._mark_started(process, target, context)

        probe = Probe(
            probe_spec, target, on_change, healthy={"startup": None, "liveness": True, "readiness": False}[kind]
        )
        probe.name = kind
        self._probes.append(probe)
        probe.start()

    def _target(self, process: Process, context: PodContext) -> Target:
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports", []) if "name" in port}
        return Target(context.addresses["status.podIP"], ports, process.execute)

    def _end(self, code: int, context: PodContext) -> None:
        """Records the exit; runs in the thread that waited for it."""
        self.end_probes()
        self._probes = []
        # Remove the group before the state allows the next start, which reuses it.
        context.group.child(self.name).remove()
        self.ready, self.started = False, False
        ran = time.monotonic() - self._began
        self._backoff = 0.0 if ran > BACKOFF_RESET_SECONDS else self._backoff
        self.starts_at = time.monotonic() + self._backoff
        self._backoff = min(max(self._backoff * 2, FIRST_BACKOFF_SECONDS), LONGEST_BACKOFF_SECONDS)
        ended = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": self.state["running"]["startedAt"],
            "finishedAt": now(),
            "containerID": self.container_id,
        }
        if code > 128 and code != 255:
            ended["signal"] = code - 128
        self.state = self.last_state = {"terminated": ended}
        context.wake()

    @property
    def container_id(self) -> str:
        return f"process://{self.name}-{len(self.logs)}" if self.logs else ""

    def _retry_later(self, reason: str, message: str, context: PodContext) -> None:
        if self.state.get("waiting", {}).get("message") != message:
            context.record_event("Failed", f"{self.name}: {message}")
        self.set_waiting(reason, message)
        self.starts_at = time.monotonic() + 1.0


def _process_spec(spec: Object, context: PodContext) -> ProcessSpec:
    pod = context.pod()
    image = images.find(spec["image"])
    identity = security.identity(pod, spec)
    variables = environment.build(pod, spec, context.addresses, context.data)
    command = environment.expand_all(spec["command"], variables) if spec.get("command") else list(image.command)
    args = environment.expand_all(spec.get("args") or [], variables)
    if not args and not spec.get("command"):
        args = list(image.args)
    if not command and not args:
        raise MissingSource("no command specified")
    return ProcessSpec(
        root=str(context.folder / "root"),
        hostname=context.addresses["hostname"],
        argv=[*command, *args],
        environment=variables,
        folder=spec.get("workingDir") or "/",
        files=_files(pod, context.addresses),
        mounts=[_mount(mount, pod, context, variables) for mount in spec.get("volumeMounts", [])],
        programs=_programs(image),
        user=identity.user,
        group=identity.group,
        groups=identity.groups,
        capabilities=identity.capabilities,
        privileged=identity.privileged,
        no_new_privileges=identity.no_new_privileges,
        read_only=identity.read_only,
    )


def _programs(image: Image) -> list[dict[str, str]]:
    """Returns the files of an image, its program first."""
    own = {image.path: image.program} if image.program else {}
    return [{"source": str(source), "target": target} for target, source in {**own, **image.files}.items()]


def _mount(mount: Object, pod: Object, context: PodContext, variables: dict[str, str]) -> dict[str, object]:
    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
    source = context.volumes.path(volume)
    below = environment.expand(mount.get("subPathExpr") or "", variables) or mount.get("subPath")
    if below:
        source = source / below
        if not source.exists() and "emptyDir" in volume:
            source.mkdir(parents=True)
    writable = "emptyDir" in volume or "hostPath" in volume
    return {
        "source": str(source.resolve() if below else source),
        "target": mount["mountPath"],
        "read_only": bool(mount.get("readOnly")) or not writable,
    }


def _files(pod: Object, addresses: dict[str, str]) -> dict[str, str]:
    """Returns name files as a kubelet writes them. The cluster has no DNS."""
    name = addresses["hostname"]
    hosts = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    hosts += [f"{address}\t{name}" for address in addresses["status.podIPs"].split(",")]
    for alias in pod["spec"].get("hostAliases", []):
        hosts.append("\t".join([alias["ip"], *alias.get("hostnames", [])]))
    domain = f"{pod['metadata']['namespace']}.svc.cluster.local"
    resolving = f"search {domain} svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
    return {"/etc/hosts": "\n".join(hosts) + "\n", "/etc/hostname": f"{name}\n", "/etc/resolv.conf": resolving}


def _run_hook(hook: Object, target: Target, seconds: float) -> str | None:
    """Runs a hook; returns the failure or None."""
    if "sleep" in hook:
        time.sleep(min(hook["sleep"]["seconds"], seconds))
        return None
    return probes.check(hook, target, seconds)


def _grace(pod: Object, probe: Object) -> float:
    return probe.get("terminationGracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds", 30))


def _millicores(spec: Object) -> int | None:
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("cpu")
    return None if limit is None else max(round(environment.quantity(str(limit)) * 1000), 10)
