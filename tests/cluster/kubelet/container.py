"""One container of a pod, over all its lives: what it is asked, when it is ended, when it may begin again."""

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
from tests.cluster.kubelet.environment import Data, NotYet
from tests.cluster.kubelet.images import NoImage
from tests.cluster.kubelet.moment import now
from tests.cluster.kubelet.probes import KINDS, Probe, Target
from tests.cluster.kubelet.process import Asked, Process
from tests.cluster.kubelet.volumes import Volumes

# As the kubelet has it: who ends at once begins again at once, and then later and later.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0
FORGIVEN_AFTER_SECONDS = 600.0
# What a container has left after a preStop hook that took its whole grace.
LEAST_GRACE_SECONDS = 2.0
HOOK_SECONDS = 600.0

Kind = Literal["main", "init", "sidecar"]


@dataclass(frozen=True)
class Surroundings:
    """What the containers of a pod have in common."""

    # As it is at this moment.
    pod: Callable[[], Object]
    folder: Path
    group: ControlGroup
    network: Path
    addresses: dict[str, str]
    data: Data
    volumes: Volumes
    # Something has changed that a status or the next container depends on.
    poke: Callable[[], None]
    # An event of the pod: why, and what.
    tell: Callable[[str, str], None]


class Container:
    """Its state is in the words of the API."""

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
        self.begins_at = 0.0
        self.image_id = ""
        self._pause = 0.0
        self._began = 0.0
        self._probes: list[Probe] = []
        self._stopping = threading.Lock()

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """Of its last life; None if it runs, or never did."""
        return None if self.running or not self.last_state else self.last_state["terminated"]["exitCode"]

    def waits(self, reason: str, message: str = "") -> None:
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def may_begin_again(self, policy: str) -> bool:
        """Whether it is for this restart policy to begin after it has ended."""
        if self.kind == "sidecar" or (policy == "Always" and self.kind == "main"):
            return True
        return policy != "Never" and self.exit_code != 0

    def begin(self, around: Surroundings) -> None:
        """A life more. What is missing for it is a state, and the next try comes later."""
        try:
            asked = _asked(self.spec, around)
        except NoImage as error:
            self._try_later("ErrImagePull", str(error), around)
            return
        except NotYet as error:
            self._try_later("CreateContainerConfigError", str(error), around)
            return
        if self.last_state:
            self.restarts += 1
        life = len(self.logs)
        log = around.folder / "logs" / self.name / f"{life}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.logs.append(log)
        self.image_id = f"program://{asked.program['source']}" if asked.program else "machine:///usr"
        self.ready, self.started = False, False
        self._began = time.monotonic()
        self.state = {"running": {"startedAt": now()}}
        group = around.group.child(self.name).create(_millicores(self.spec))
        self.process = Process(
            asked, around.network, group, log, around.folder / f"{self.name}.json", lambda code: self._end(code, around)
        )
        around.tell("Started", f"{self.name}: {self.spec['image']}")
        threading.Thread(target=self._accompany, args=(self.process, around), daemon=True).start()

    def stop(self, grace_seconds: float, around: Surroundings) -> None:
        """Asks it to end, makes it end after the grace, and returns when it has ended."""
        process = self.process
        if process is None or not process.alive():
            return
        deadline = time.monotonic() + grace_seconds
        process.begun()
        with self._stopping:
            hook = (self.spec.get("lifecycle") or {}).get("preStop")
            if hook and process.alive() and grace_seconds > 0:
                if reason := _run_hook(hook, self._target(process, around), grace_seconds):
                    around.tell("FailedPreStopHook", f"{self.name}: {reason}")
            number = getattr(signal, (self.spec.get("lifecycle") or {}).get("stopSignal", "SIGTERM"))
            process.signal(number)
        left = deadline - time.monotonic()
        if not process.wait(max(left, LEAST_GRACE_SECONDS if grace_seconds > 0 else 0.0)):
            process.kill()
            process.wait(LONGEST_PAUSE_SECONDS)

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def end_probes(self, *, but_readiness: bool = False) -> None:
        for probe in self._probes:
            if not (but_readiness and probe.name == "readiness"):
                probe.end()

    def _accompany(self, process: Process, around: Surroundings) -> None:
        """Its hook and then its probes, from a thread of their own."""
        if not process.begun():
            return
        target = self._target(process, around)
        hook = (self.spec.get("lifecycle") or {}).get("postStart")
        if hook and (reason := _run_hook(hook, target, HOOK_SECONDS)):
            around.tell("FailedPostStartHook", f"{self.name}: {reason}")
            self.stop(_grace(around.pod(), {}), around)
            return
        if "startupProbe" in self.spec:
            self._probe("startup", process, target, around)
        else:
            self._has_started(process, target, around)

    def _has_started(self, process: Process, target: Target, around: Surroundings) -> None:
        if not process.alive():
            return
        self.started = True
        if "livenessProbe" in self.spec:
            self._probe("liveness", process, target, around)
        if "readinessProbe" in self.spec:
            self._probe("readiness", process, target, around)
        else:
            self.ready = True
        around.poke()

    def _probe(self, kind: str, process: Process, target: Target, around: Surroundings) -> None:
        asked = self.spec[KINDS[kind]]

        def told(well: bool, why: str) -> None:
            if not process.alive():
                return
            if not well:
                around.tell("Unhealthy", f"{self.name}: {kind.capitalize()} probe failed: {why}")
            if kind == "readiness":
                self.ready = well
                around.poke()
            elif not well:
                probe.end()
                around.tell("Killing", f"{self.name}: failed its {kind} probe and is ended")
                grace = _grace(around.pod(), asked)
                threading.Thread(target=self.stop, args=(grace, around), daemon=True).start()
            elif kind == "startup":
                probe.end()
                self._has_started(process, target, around)

        probe = Probe(asked, target, told, well={"startup": None, "liveness": True, "readiness": False}[kind])
        probe.name = kind
        self._probes.append(probe)
        probe.start()

    def _target(self, process: Process, around: Surroundings) -> Target:
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports", []) if "name" in port}
        return Target(around.addresses["status.podIP"], ports, process.execute)

    def _end(self, code: int, around: Surroundings) -> None:
        """From the thread that has waited for it."""
        self.end_probes()
        self._probes = []
        # Before the state says that a next life may have the group.
        around.group.child(self.name).remove()
        self.ready, self.started = False, False
        ran = time.monotonic() - self._began
        self._pause = 0.0 if ran > FORGIVEN_AFTER_SECONDS else self._pause
        self.begins_at = time.monotonic() + self._pause
        self._pause = min(max(self._pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
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
        around.poke()

    @property
    def container_id(self) -> str:
        return f"process://{self.name}-{len(self.logs)}" if self.logs else ""

    def _try_later(self, reason: str, message: str, around: Surroundings) -> None:
        if self.state.get("waiting", {}).get("message") != message:
            around.tell("Failed", f"{self.name}: {message}")
        self.waits(reason, message)
        self.begins_at = time.monotonic() + 1.0


def _asked(spec: Object, around: Surroundings) -> Asked:
    pod = around.pod()
    image = images.find(spec["image"])
    who = security.identity(pod, spec)
    variables = environment.build(pod, spec, around.addresses, around.data)
    command = environment.expand_all(spec["command"], variables) if spec.get("command") else list(image.command)
    args = environment.expand_all(spec.get("args") or [], variables)
    if not args and not spec.get("command"):
        args = list(image.args)
    if not command and not args:
        raise NotYet("no command specified")
    return Asked(
        root=str(around.folder / "root"),
        hostname=around.addresses["hostname"],
        argv=[*command, *args],
        environment=variables,
        folder=spec.get("workingDir") or "/",
        files=_files(pod, around.addresses),
        mounts=[_mount(mount, pod, around, variables) for mount in spec.get("volumeMounts", [])],
        program={"source": str(image.program), "target": image.path} if image.program else None,
        user=who.user,
        group=who.group,
        groups=who.groups,
        capabilities=who.capabilities,
        privileged=who.privileged,
        no_new_privileges=who.no_new_privileges,
        read_only=who.read_only,
    )


def _mount(mount: Object, pod: Object, around: Surroundings, variables: dict[str, str]) -> dict[str, object]:
    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
    source = around.volumes.path(volume)
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
    """Names, as a kubelet writes them. There is no DNS in the cluster."""
    name = addresses["hostname"]
    hosts = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    hosts += [f"{address}\t{name}" for address in addresses["status.podIPs"].split(",")]
    for alias in pod["spec"].get("hostAliases", []):
        hosts.append("\t".join([alias["ip"], *alias.get("hostnames", [])]))
    domain = f"{pod['metadata']['namespace']}.svc.cluster.local"
    resolving = f"search {domain} svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
    return {"/etc/hosts": "\n".join(hosts) + "\n", "/etc/hostname": f"{name}\n", "/etc/resolv.conf": resolving}


def _run_hook(hook: Object, target: Target, seconds: float) -> str | None:
    """Why it failed, or None."""
    if "sleep" in hook:
        time.sleep(min(hook["sleep"]["seconds"], seconds))
        return None
    return probes.ask(hook, target, seconds)


def _grace(pod: Object, probe: Object) -> float:
    return probe.get("terminationGracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds", 30))


def _millicores(spec: Object) -> int | None:
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("cpu")
    return None if limit is None else max(round(environment.quantity(str(limit)) * 1000), 10)
