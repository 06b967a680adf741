"""One run of a container: a process in its own namespaces, with root, control group and log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.testbed.cgroups import ControlGroup
from tests.cluster.kubelet import logs

ENTER = Path(__file__).with_name("enter.py")
# util-linux's unshare holds the first process of the namespaces, and passes its exit code on.
NAMESPACES = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL", "--")
POLL_SECONDS = 0.005


@dataclass(frozen=True)
class ProcessSpec:
    """Specification for `enter.py`."""

    root: str
    hostname: str
    argv: Sequence[str]
    environment: dict[str, str]
    folder: str
    files: dict[str, str]
    mounts: Sequence[dict[str, Any]]
    programs: Sequence[dict[str, str]]
    user: int
    group: int
    groups: Sequence[int]
    capabilities: Sequence[str]
    privileged: bool
    no_new_privileges: bool
    read_only: bool


@dataclass(frozen=True)
class Command:
    """A command of this machine, and its environment."""

    argv: list[str]
    environment: dict[str, str]


class Process:
    """A process that starts at once; a thread calls `on_exit` with its exit code."""

    def __init__(
        self,
        spec: ProcessSpec,
        network: Path,
        group: ControlGroup,
        log: Path,
        file: Path,
        on_exit: Callable[[int], None],
    ) -> None:
        # The log must exist before a client can request it.
        log.touch()
        self.spec = spec
        self._file = file
        self._group = group
        file.write_text(json.dumps(asdict(spec)))
        file.chmod(0o600)
        argv = [f"--net={network}", "--", *NAMESPACES, sys.executable, "-I", "-S", ENTER, file]
        self._process = subprocess.Popen(
            list(map(str, group.enter_command(["nsenter", *argv]))),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._exited = threading.Event()
        threading.Thread(target=self._wait_for_exit, args=(log, on_exit), daemon=True).start()

    def alive(self) -> bool:
        return not self._exited.is_set()

    def wait_started(self) -> bool:
        """Waits until the command runs in its root or has ended; before, it runs in the machine's root."""
        while self.alive():
            with contextlib.suppress(FileNotFoundError):
                if self._file.stat().st_size == 0:
                    return True
            time.sleep(POLL_SECONDS)
        return False

    def wait(self, seconds: float) -> bool:
        """Returns true if the process ends within this time."""
        return self._exited.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the container's first process, like a container runtime."""
        with contextlib.suppress(ProcessLookupError):
            if first := self._first_pid():
                os.kill(first, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if not self.wait(1.0):
            # The first process may not exist yet.
            self._group.remove()

    def command(self, command: Sequence[str]) -> Command | None:
        """Returns a command of this machine that runs the given one in the container, with the container's rights and
        environment; None if the container is not running.
        """
        first = self._first_pid() if self.wait_started() else None
        if first is None:
            return None
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd")
        argv = self._group.enter_command(["nsenter", f"--target={first}", *namespaces, "--", *self._rights(), *command])
        environment = self.spec.environment | {"PATH": os.environ["PATH"] + ":" + self.spec.environment["PATH"]}
        return Command(list(map(str, argv)), environment)

    def execute(self, command: Sequence[str], timeout: float) -> str | None:
        """Runs a command in the container; returns the failure or None."""
        inside = self.command(command)
        if inside is None:
            return "the container is not running"
        try:
            done = subprocess.run(
                inside.argv,
                env=inside.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"command {list(command)} timed out after {timeout:g} s"
        output = (done.stdout + done.stderr).decode(errors="replace").strip()
        return (
            None if done.returncode == 0 else f"command {list(command)} ended with {done.returncode}: {output[:1000]}"
        )

    def _rights(self) -> list[str]:
        """Returns a launcher that gives up what the container's own process has given up."""
        spec = self.spec
        words = [f"--reuid={spec.user}", f"--regid={spec.group}"]
        words.append(f"--groups={','.join(map(str, spec.groups))}" if spec.groups else "--clear-groups")
        if not spec.privileged:
            kept = "".join(f",+{name.lower()}" for name in spec.capabilities)
            words.append(f"--bounding-set=-all{kept}")
        if spec.no_new_privileges:
            words.append("--no-new-privs")
        return ["setpriv", *words, "--"]

    def _first_pid(self) -> int | None:
        """Returns the host PID of the first process in the namespace, which may need a moment to start."""
        deadline = time.monotonic() + 1.0
        pid = self._process.pid
        while self.alive() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                if children:
                    return int(children[0])
            time.sleep(POLL_SECONDS)
        return None

    def _wait_for_exit(self, log: Path, on_exit: Callable[[int], None]) -> None:
        logs.record(os.dup(self._process.stdout.fileno()), log)
        self._process.stdout.close()
        code = self._process.wait()
        self._exited.set()
        on_exit(code if code >= 0 else 128 - code)
