"""Processes that the lab starts: pinned, in a separate session, and killed when the lab ends."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self


class ChildFailed(Exception):
    """A process ended early or did not become ready; the message has the end of its log."""


class Child:
    """A process with its descendants. Output that is not piped goes to `log`. `stdio` replaces its standard input and
    output by descriptors.

    Set `high_priority` to false for a process that is not measured.
    """

    def __init__(
        self,
        argv: Sequence[object],
        log: Path,
        *,
        cpus: Sequence[int] = (),
        piped: bool = False,
        env: Mapping[str, str] | None = None,
        high_priority: bool = True,
        stdio: tuple[int, int] | None = None,
    ) -> None:
        self.argv = [str(word) for word in argv]
        self.log = log
        pipe = subprocess.PIPE if piped else None
        with log.open("ab") as out:
            stdin, stdout = stdio or (pipe or subprocess.DEVNULL, pipe or out)
            self._process = subprocess.Popen(
                [*_launcher(cpus), *self.argv],
                stdin=stdin,
                stdout=stdout,
                stderr=out,
                # A backtrace would hide the message, because errors show only the end of the log.
                env={**os.environ, "RUST_BACKTRACE": "0", **(env or {})},
                text=True,
                start_new_session=True,
            )
        if high_priority:
            raise_priority(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[str]:
        assert self._process.stdin is not None, "only a piped child has a standard input"
        return self._process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self._process.stdout is not None, "only a piped child has a standard output"
        return self._process.stdout

    def processes(self) -> list[int]:
        """Returns the process and its descendants."""
        found = [self.pid]
        for pid in found:
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            except FileNotFoundError:
                continue
            found.extend(int(child) for child in children.split())
        return found

    def pss_bytes(self) -> int:
        """Returns the proportional set size: private memory plus a share of shared pages."""
        return sum(_pss_bytes(pid) for pid in self.processes())

    def alive(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises if the process has ended."""
        if not self.alive():
            raise ChildFailed(f"{self.argv[0]} ended with {self._process.returncode}{self.log_end()}")

    def log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "".join(f"\n    {line}" for line in lines)

    def terminate(self) -> None:
        """Sends SIGTERM without waiting for the exit."""
        self._signal(signal.SIGTERM)

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Sends SIGTERM to the session, and SIGKILL after the grace period."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # Ignores unsent input of a process that has ended.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_until(ready, child: Child, what: str, seconds: float = 15.0):
    """Polls `ready()` until it returns a true value; raises at once if the child ends."""
    deadline = time.monotonic() + seconds
    while True:
        if value := ready():
            return value
        child.check()
        if time.monotonic() > deadline:
            raise ChildFailed(f"{what} was not ready after {seconds:.0f} s{child.log_end()}")
        time.sleep(0.01)


def raise_open_files() -> int:
    """Raises the limit of open files to the hard limit; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _launcher(cpus: Sequence[int]) -> list[str]:
    """Returns the prefix of the command line. It kills the process with the lab, because survivors would serve the next
    run.
    """
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cpus))] if cpus else []
    return ["setpriv", "--pdeathsig", "KILL", "--", *pinned]


def raise_priority(pid: int) -> None:
    """Raises the autogroup priority, because nice has no effect between sessions if CPU is shared by session. Root
    only.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ChildFailed(f"/proc/{pid}/smaps_rollup has no Pss line")
