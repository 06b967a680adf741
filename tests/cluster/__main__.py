"""Starts and removes the test cluster, and runs commands in it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from lab.paths import MissingRequirement
from tests.cluster import cluster, control_plane, metrics_server, network, nodes, programs
from tests.cluster.layout import KUBECONFIG, NODES, POOL, PROGRAMS, node
from tests.cluster.network import NetworkError
from tests.cluster.processes import ProcessDied

EXPORT_COMMAND = f"export KUBECONFIG={KUBECONFIG} PATH={PROGRAMS}:$PATH"
ENVIRONMENT = {"KUBECONFIG": str(KUBECONFIG), "PATH": f"{PROGRAMS}:{os.environ.get('PATH', '')}"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="build what is missing, start a cluster, return when it is ready")
    up.add_argument("--real", choices=[node.name for node in NODES], help="run a real kubelet on this node")
    commands.add_parser("down", help="remove the cluster, or the leftovers of a killed one")
    build = commands.add_parser("build", help="build what is missing, and print the folder of programs")
    build.add_argument("--metrics-server", action="store_true", help="also build the metrics-server, for CPU metrics")
    build.add_argument("--conformance", action="store_true", help="also build the Gateway API's conformance suite")
    build.add_argument("--keda", action="store_true", help="also build KEDA, which takes long the first time")
    commands.add_parser("environment", help="print the environment for kubectl")
    commands.add_parser("shell", help="start a shell with kubectl")
    enter = commands.add_parser("enter", help="run a command, or a shell, in the network namespace of a node")
    enter.add_argument("node", choices=[node.name for node in NODES])
    enter.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND")
    for name, text in (("stop-node", "kill everything on a node"), ("start-node", "start a stopped node again")):
        commands.add_parser(name, help=text).add_argument("node", choices=[node.name for node in NODES])
    commands.add_parser("stop-api-server", help="kill the API server; everything else continues")
    commands.add_parser("start-api-server", help="start the API server, and return when it is ready")
    arguments = parser.parse_args(argv)
    try:
        return run(arguments)
    except (MissingRequirement, ProcessDied, NetworkError, cluster.ClusterExists) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "up":
            cluster.up(arguments.real)
            print(_usage(), end="")
        case "down":
            cluster.down()
        case "build":
            if arguments.metrics_server:
                metrics_server.make()
            programs.make_suite() if arguments.conformance else programs.make()
            if arguments.keda:
                programs.make_keda()
            print(PROGRAMS)
        case "environment":
            print(EXPORT_COMMAND)
        case "shell":
            shell = os.environ.get("SHELL", "sh")
            os.execve(shutil.which(shell) or "/bin/sh", [shell], {**os.environ, **ENVIRONMENT})
        case "enter":
            argv = [
                *network.netns_prefix(node(arguments.node).namespace),
                *(arguments.argv or [os.environ.get("SHELL", "sh")]),
            ]
            os.execvp(argv[0], argv)
        case "stop-node":
            nodes.stop(node(arguments.node))
        case "start-node":
            cluster.restart_node(node(arguments.node))
        case "stop-api-server":
            control_plane.stop_api_server()
        case "start-api-server":
            cluster.start_api_server()
    return 0


def _usage() -> str:
    lines = [f"{node.name}  {', '.join(node.addresses)}  kube-proxy with {node.proxy_mode}" for node in NODES]
    return "\n".join([EXPORT_COMMAND, *lines, f"free addresses: {', '.join(POOL)}"]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
