"""Sends the same traffic to a pod without a balancer, through kube-proxy's rules, and through Sheave's programs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from lab.article003 import arms, rows, uml
from lab.article003.figures import figures
from lab.article003.measures import MeasuredArm
from lab.article003.services import services
from lab.article003.site import HostGroup, Site
from lab.bench import Bench, Progress, Row, print_status
from lab.figure import Figure
from lab.testbed import cluster
from lab.testbed.ownership import acquire

TOOLS = {
    **{"iperf3": "iperf3", "nft": "nftables", "ethtool": "ethtool"},
    **{"tc": "iproute2", "bridge": "iproute2", "unshare": "util-linux"},
}


def obstacle() -> str | None:
    missing = [f"{tool} (Debian's {package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        return f"missing: {', '.join(missing)}; run scripts/setup lab"
    return cluster.obstacle()


def run(bench: Bench) -> dict[str, Figure]:
    chosen = _chosen_cases(bench)
    with acquire() as top:
        measure(bench, top, [case for case in chosen if case["by"] != "uml"])
    for case in chosen:
        if case["by"] == "uml":
            _measure_in_uml(bench, case)
    return figures(bench.rows)


def _measure_in_uml(bench: Bench, case: Mapping[str, Any]) -> None:
    if reason := uml.obstacle():
        bench.note(f"Not run: IPVS, in user-mode Linux ({reason}).")
        return
    for row in uml.measure(bench, case):
        bench.record(row)


def measure(bench: Bench, top: HostGroup, cases: Sequence[Mapping[str, Any]], *, prefix: str = "") -> None:
    """Measures the cases of all arms that can run here."""
    chance, rounds = random.Random(bench.settings["seed"]), bench.setting("rounds")
    with ExitStack() as stack:
        measured = {name: _set_up(bench, top, name, stack) for name in _able_arms(bench, cases)}
        steps = [(case, [measured[name] for name in case["arms"] if name in measured]) for case in cases]
        progress = Progress(rounds * sum(len(taking_part) for _, taking_part in steps))
        # Rules for many Services take a while to write, so cases of as many Services follow one another.
        for count in sorted({_services(case) for case in cases}):
            alike = [(case, taking_part) for case, taking_part in steps if _services(case) == count]
            _set_services(count, [arm for _, taking_part in alike for arm in taking_part])
            for number in range(1, rounds + 1):
                for case, taking_part in chance.sample(alike, len(alike)):
                    for arm in chance.sample(taking_part, len(taking_part)):
                        for row in _measure(bench, case, arm, number):
                            bench.record({**row, "case": f"{prefix}{row['case']}"})
                        progress.step(f"round {number}, {prefix}{case['id']}, {arm.name}")


def _chosen_cases(bench: Bench) -> list[dict[str, Any]]:
    chosen = bench.only or bench.settings.get(f"{bench.extent}_variants")
    cases = bench.settings["cases"]
    if chosen:
        return [case for case in cases if case["id"] in chosen]
    return [case for case in cases if bench.extent in case.get("extents", (bench.extent,))]


def _able_arms(bench: Bench, cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the arms of the cases without those that cannot run here, which are noted."""
    able = []
    for name in dict.fromkeys(name for case in cases for name in case["arms"]):
        if reason := arms.obstacle(bench.settings["arms"][name]["balancer"]):
            bench.note(f"Not run: {name} ({reason}). Claims about it are not measured.")
        else:
            able.append(name)
    return able


def _set_up(bench: Bench, top: HostGroup, name: str, stack: ExitStack) -> MeasuredArm:
    print_status(f"setting up {name}")
    settings = bench.settings["arms"][name]
    site = Site(name, top, bench.logs)
    stack.callback(site.remove)
    path = arms.DATA_PATHS[settings["balancer"]](site, settings)
    stack.callback(path.stop)
    return MeasuredArm(name, site, path)


def _set_services(count: int, taking_part: Iterable[MeasuredArm]) -> None:
    for arm in {arm.name: arm for arm in taking_part}.values():
        print_status(f"{arm.name}: {count} Services")
        arm.path.set_services(services(count))


def _services(case: Mapping[str, Any]) -> int:
    return case.get("services", 1)


def _measure(bench: Bench, case: Mapping[str, Any], arm: MeasuredArm, number: int) -> Iterable[Row]:
    where = {"round": number, "arm": arm.name}
    arm.site.set_segmentation_offload(case.get("offload", False))
    seconds = bench.setting("seconds")
    match case["by"]:
        case "stream":
            report = arm.stream(seconds, streams=case["streams"])
            return rows.of_stream(where, case["id"], report, whole_machine=bench.settings.get("whole_machine", False))
        case "busy-download":
            arm.site.limit_nodes(bench.settings["busy_mbit"])
            try:
                return rows.of_busy_download(where, case["id"], arm.busy_download(bench.setting("busy_seconds")))
            finally:
                arm.site.limit_nodes(None)
        case by:
            extent = {
                "warmup_seconds": bench.settings["warmup_seconds"],
                "seconds": seconds,
                "spin": bench.settings.get("spin", True),
            }
            report = arm.exchanges(extent, new_connections=by == "connection")
            return rows.of_exchanges(where, case["id"], report)
