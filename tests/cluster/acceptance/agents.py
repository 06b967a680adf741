"""Sheave in transparent mode on the cluster's nodes, one process each, and the kernel's rules that it makes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.acceptance.load import enter_network
from tests.cluster.layout import KUBECONFIG, LOGS, REPOSITORY, STATE, Node
from tests.cluster.processes import Process, own_group

# A copy without the capabilities of the image's file: a process of root has those of its bounding set.
PROGRAM = STATE / "agent"
FIRST_ADMIN_PORT = 9900
START_SECONDS = 30.0
POLL_SECONDS = 0.01


class AgentFailed(Exception):
    """An agent did not do what it must; the message has the end of its log."""


class Agent:
    """A process of Sheave on a node. Agents of one node have different numbers."""

    def __init__(self, node: Node, number: int = 0, flags: Sequence[str] = (), launcher: Sequence[str] = ()) -> None:
        self.node = node
        self.name = f"sheave-{node.name}-{number}"
        self._admin = f"{node.addresses[0]}:{FIRST_ADMIN_PORT + number}"
        argv = [
            *launcher,
            PROGRAM,
            "serve",
            "--kubernetes",
            "--transparent",
            f"--node-name={node.name}",
            f"--identity={self.name}",
            "--namespace=default",
            f"--admin={self._admin}",
            "--drain-timeout=5s",
            *flags,
        ]
        self._process = Process(
            self.name,
            argv,
            group=own_group(node.name),
            namespace=node.namespace,
            folder=REPOSITORY,
            env={"KUBECONFIG": str(KUBECONFIG)},
        )
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return (LOGS / f"{self.name}.log").read_text(errors="replace")

    def metrics(self) -> dict[str, float]:
        """Returns all metrics by their name with labels; none if the agent does not answer."""
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"http://{self._admin}/metrics", timeout=5) as response:
                lines = response.read().decode().splitlines()
            return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")}
        return {}

    def metric(self, name: str) -> float:
        return self.metrics().get(name, 0.0)

    def wait_until(self, what: str, metric: str, least: float, seconds: float = START_SECONDS) -> None:
        """Waits until a metric has at least this value."""
        deadline = time.monotonic() + seconds
        while self.metric(metric) < least:
            if self.exit_code() is not None or time.monotonic() > deadline:
                raise AgentFailed(f"{self.name}: {what} missing; {metric} is {self.metric(metric)}; {self.log()[-2000:]}")
            time.sleep(POLL_SECONDS)

    def wait_until_taken(self, addresses: int) -> None:
        """Waits until the rules take this many addresses of Services."""
        self.wait_until(f"{addresses} addresses", "sheave_transparent_addresses", addresses)
        self.wait_until("rules in force", "sheave_transparent_rules_in_force", 1)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def exit_code(self) -> int | None:
        """Returns the exit code if the process has ended."""
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code

    def wait(self, seconds: float = START_SECONDS) -> int:
        """Waits for the end of the process; returns its exit code."""
        deadline = time.monotonic() + seconds
        while (code := self.exit_code()) is None:
            if time.monotonic() > deadline:
                raise AgentFailed(f"{self.name} has not ended after {seconds:g} s; {self.log()[-2000:]}")
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        """Kills the process, if it has not ended, and waits."""
        if self.exit_code() is None:
            self.signal(signal.SIGKILL)
            self.wait()


class NodeTables:
    """nftables of a node, by the library of `nft`: a command takes less than a millisecond."""

    def __init__(self, node: Node) -> None:
        library = ctypes.CDLL("libnftables.so.1")
        library.nft_ctx_new.restype = ctypes.c_void_p
        library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
        for name in ("nft_ctx_free", "nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_get_output_buffer"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._library = library
        # The socket of the context belongs to the namespace of the thread that makes it.
        opening = threading.Thread(target=self._open, args=(node.namespace_file,))
        opening.start()
        opening.join()

    def _open(self, namespace: Path) -> None:
        enter_network(namespace)
        self._context = self._library.nft_ctx_new(0)
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def close(self) -> None:
        self._library.nft_ctx_free(self._context)

    def run(self, command: str) -> str | None:
        """Runs a command; returns its output, or None if it failed."""
        if self._library.nft_run_cmd_from_buffer(self._context, command.encode()) != 0:
            return None
        return self._library.nft_ctx_get_output_buffer(self._context).decode()

    def of_agents(self) -> list[str]:
        """Returns the names of the agents' tables."""
        return re.findall(r"table inet (sheave_\d+)", self.run("list tables") or "")

    def takes(self, table: str, address: str, port: int) -> bool:
        """Returns true if the rules take connections to this address."""
        name = "services6" if ":" in address else "services4"
        return self.run(f"get element inet {table} {name} {{ {address} . {port} }}") is not None
