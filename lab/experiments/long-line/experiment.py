"""Runs each case of experiment.toml once a round, over our link and, if the kernel has it, over netem."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from lab.bench import Bench, Progress, Row
from lab.child import ChildFailed, wait_until
from lab.figure import Figure
from lab.network import listens
from lab.testbed import cluster, hosts, link, netem
from lab.testbed.hosts import Host
from lab.testbed.link import Link, LinkConditions, LinkDirection
from lab.testbed.netem import Netem
from lab.testbed.ownership import acquire

TOOLS = {"ping": "iputils-ping", "iperf3": "iperf3"}
OURS, KERNELS = "link", "netem"
# Addresses of the node and of the far host, for each kind of link.
ADDRESSES = {OURS: ("10.99.0.1", "10.99.0.2"), KERNELS: ("10.98.0.1", "10.98.0.2")}
# BBR does not react to loss, so it shows the capacity of the link.
CONGESTION_CONTROL = "bbr"
IPERF_PORT = 5201
UNITS = {"ping": "ms", "datagrams": "% lost", "stream": "Mbit/s"}
# Start of a connection that is not measured.
WARM_UP_SECONDS = 2


def obstacle() -> str | None:
    missing = [f"{tool} (Debian's {package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        return f"missing: {', '.join(missing)}; run scripts/setup lab"
    return cluster.obstacle() or link.obstacle((CONGESTION_CONTROL,))


def run(bench: Bench) -> dict[str, Figure]:
    cases, chance = bench.settings["cases"], random.Random(bench.settings["seed"])
    kinds = [OURS]
    if reason := netem.obstacle():
        bench.note(f"The kernel has no netem to compare with ({reason}).")
    else:
        kinds.append(KERNELS)
    progress = Progress(bench.setting("rounds") * len(cases) * len(kinds))
    with acquire() as top, ExitStack() as exit_stack:
        line_hosts = {kind: _LineHost(bench, kind, top, exit_stack) for kind in kinds}
        for round_number in range(1, bench.setting("rounds") + 1):
            for case in chance.sample(cases, len(cases)):
                for kind in chance.sample(kinds, len(kinds)):
                    value = line_hosts[kind].measure(case, chance.getrandbits(63))
                    where = {"case": case["id"], "arm": kind, "round": round_number}
                    bench.record({**where, "cost": value, "unit": UNITS[case["by"]]})
                    progress.step(f"round {round_number}, {case['id']} over {kind}")
    return figures(bench.rows)


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns the figures of our link by case."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["arm"] == OURS:
            found.setdefault(row["case"], []).append(row)
    return {case: Figure.of([row["cost"] for row in own], own[0]["unit"]) for case, own in found.items()}


class _LineHost:
    """A host at the far end of a link of one kind."""

    def __init__(self, bench: Bench, kind: str, top: Any, exit_stack: ExitStack) -> None:
        self._bench = bench
        gateway, self._address = ADDRESSES[kind]
        name = f"by-{kind}"
        host = self._host = Host(name, self._address, top.child(name), bench.logs)
        self._line = Link(host, gateway, top.child("carrier"), bench.logs) if kind == OURS else Netem(host, gateway)
        if isinstance(self._line, Link):
            exit_stack.callback(self._line.remove)
        exit_stack.callback(host.remove)
        _set_buffer_sizes(host, bench.settings["window_bytes"])

    def measure(self, case: dict[str, Any], seed: int) -> float:
        direction = LinkDirection(
            case["rtt_ms"] / 2, case.get("mbit"), case.get("queue_kib", 1024), case.get("loss", 0.0)
        )
        conditions = LinkConditions(direction, direction)
        if isinstance(self._line, Link):
            self._line.apply(conditions, CONGESTION_CONTROL, seed)
        else:
            self._line.apply(conditions)
        match case["by"]:
            case "ping":
                return self._ping()
            case "datagrams":
                rate = f"{case['rate_mbit']}M"
                return self._iperf("--udp", "--bitrate", rate, "--length", 1400)["sum"]["lost_percent"]
            case _:
                output = self._iperf("--congestion", CONGESTION_CONTROL, "--omit", WARM_UP_SECONDS)
                return output["sum_received"]["bits_per_second"] / 1e6

    def _ping(self) -> float:
        output = _output(["ping", "-q", "-c", self._bench.settings["pings"], "-i", "0.02", self._address])
        found = re.search(r"= [\d.]+/([\d.]+)/", output)
        if not found:
            raise ChildFailed(f"ping reports no round-trip times: {output}")
        return float(found.group(1))

    def _iperf(self, *words: object) -> dict[str, Any]:
        """Runs iperf3 with a new server, because an old one may still wait for the end of the previous measurement."""
        seconds = round(self._bench.setting("seconds"))
        log = self._bench.logs / f"iperf3-{self._host.name}.log"
        with self._host.start(["iperf3", "--server", "--one-off", "--bind", self._address], log) as server:
            wait_until(lambda: listens(server.processes(), IPERF_PORT), server, "iperf3")
            return json.loads(_output(["iperf3", "--client", self._address, "--json", "--time", seconds, *words]))[
                "end"
            ]


def _set_buffer_sizes(host: Host, window_bytes: int) -> None:
    for run in (hosts.run_on_node, host.run):
        for name in ("tcp_rmem", "tcp_wmem"):
            run(["sh", "-c", f"cat >/proc/sys/net/ipv4/{name}"], f"4096 131072 {window_bytes}")


def _output(argv: Sequence[object]) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"`{' '.join(words)}` fails: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
