"""Sheave in transparent mode on each node, as its DaemonSet runs it: a process in the node's network namespace."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path

from lab.child import ChildFailed
from lab.kubernetes.deployment import Deployment
from lab.kubernetes.session import ClusterSession, wait
from lab.paths import REPOSITORY, binary
from lab.testbed.cgroups import ControlGroup
from tests.cluster.layout import KUBECONFIG, NODES, Node
from tests.cluster.network import netns_prefix
from tests.cluster.processes import Process, ProcessDied, top_group

ANNOTATION = "sheave.dev/balance=requests"
WITHOUT_ANNOTATION = "sheave.dev/balance-"
# Resets connections that were made before the annotation.
ADOPTION = "sheave.dev/adopt=reset"
GROUP = "sheave"
# Beginning of the names of Sheave's nftables tables.
TABLE = "sheave_"
ADMIN_PORT = 9900
CRDS = REPOSITORY / "deploy" / "chart" / "crds"
START_SECONDS = 30
TAKEN_SECONDS = 15


class Agents:
    """One Sheave for each node. They end with the cluster."""

    def __init__(self, session: ClusterSession, folder: Path) -> None:
        session.kubectl("apply", "--server-side", "--filename", str(CRDS))
        ready_files = [folder / f"sheave-{node.name}.json" for node in NODES]
        self._processes = [_start(node, folder, ready) for node, ready in zip(NODES, ready_files, strict=True)]
        wait(lambda: self._are_running() and all(file.is_file() for file in ready_files), "Sheave", START_SECONDS)

    def _are_running(self) -> bool:
        self.check()
        return True

    def check(self) -> None:
        """Raises if one has ended."""
        try:
            for process in self._processes:
                process.check()
        except ProcessDied as error:
            raise ChildFailed(str(error)) from error

    def balance(self, deployment: Deployment, *more: str) -> None:
        """Annotates the Service, and waits until each node's rules have its address."""
        deployment.annotate(ANNOTATION, *more)
        wait(
            lambda: all(self._taken_at(deployment)), "a rule for the annotated Service on each node", TAKEN_SECONDS
        )

    def release(self, deployment: Deployment) -> None:
        """Removes the annotation of the Service, and waits until no node's rules have its address."""
        deployment.annotate(WITHOUT_ANNOTATION)
        wait(lambda: not any(self._taken_at(deployment)), "the end of the Service's rules", TAKEN_SECONDS)

    def _taken_at(self, deployment: Deployment) -> list[bool]:
        """Returns for each node whether its rules have the address of the Service."""
        self.check()
        address, _, port = deployment.address.rpartition(":")
        return [has_address(_sets(node), address, int(port)) for node in NODES]

    def pid(self, node: Node) -> int:
        """Returns the process of a node's agent."""
        return self._processes[NODES.index(node)].pid

    def kill(self) -> None:
        """Kills all of them; the kernel removes their rules."""
        for node in NODES:
            _group(node).remove()
        for process in self._processes:
            with suppress(ProcessDied):
                process.check()

    def cpu_seconds(self) -> float:
        """Returns the CPU time of all of them."""
        return sum(_group(node).cpu_seconds() for node in NODES)


def _start(node: Node, folder: Path, ready: Path) -> Process:
    argv = [binary("sheave"), "serve", "--kubernetes", "--transparent", "--node-name", node.name]
    argv += ["--identity", f"transparent-{node.name}", "--admin", f"{node.addresses[0]}:{ADMIN_PORT}"]
    return Process(
        f"sheave-{node.name}",
        [*argv, "--ready-file", ready],
        group=_group(node).create(),
        namespace=node.namespace,
        folder=folder,
        env={"KUBECONFIG": str(KUBECONFIG)},
    )


def _sets(node: Node) -> str:
    """Returns the nftables sets of a node."""
    argv = [*netns_prefix(node.namespace), "nft", "--json", "list", "sets", "inet"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def has_address(listing: str, address: str, port: int) -> bool:
    """Returns true if a set of Sheave's has this address and port."""
    entries = (entry["set"] for entry in json.loads(listing)["nftables"] if "set" in entry)
    elements = [element for each in entries if each["table"].startswith(TABLE) for element in each.get("elem", ())]
    return any(isinstance(each, dict) and each.get("concat") == [address, port] for each in elements)


def _group(node: Node) -> ControlGroup:
    return top_group().child(node.name).child(GROUP)
