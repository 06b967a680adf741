"""A small lab for tests to kill: sets up a testbed, prints each completed step, and waits. Root only."""

import signal
import sys
from pathlib import Path

from lab import network
from lab.testbed import cluster, hosts
from lab.testbed.hosts import Host
from lab.testbed.kube_proxy import KubeProxy
from lab.testbed.ownership import TestbedBusy, acquire

# The hardest process to remove: it ignores SIGTERM, and has a child in another session.
STUBBORN = """\
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
print(flush=True)
signal.pause()
"""
STEPS = ("acquired", "bridge", "rules", "client", "pod", "running")


def main(folder: Path) -> None:
    network.isolate()
    with acquire() as top:
        report("acquired")
        hosts.make_bridge(cluster.NODE_IN_POD_SUBNET, cluster.POD_SUBNET)
        report("bridge")
        KubeProxy(cluster.SERVICES).set_endpoints(["10.42.0.11", "10.42.0.12"])
        report("rules")
        client = Host("client", cluster.CLIENT, top.child("client"), folder)
        hosts.connect(client, cluster.NODE, cluster.CLIENT_SUBNET)
        report("client")
        pod = Host("app-1", "10.42.0.11", top.child("app-1"), folder)
        hosts.plug_in(pod, cluster.NODE_IN_POD_SUBNET)
        report("pod")
        stubborn = pod.start([sys.executable, "-c", STUBBORN], folder / "app-1.log", piped=True)
        for _ in range(2):
            stubborn.stdout.readline()
        report("running")
        signal.pause()


def report(step: str) -> None:
    print(step, flush=True)


if __name__ == "__main__":
    # Background jobs of a shell, and their tests, inherit an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(Path(sys.argv[1]))
    except TestbedBusy as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
