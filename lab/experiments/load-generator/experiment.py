"""Loads one HAProxy in turn with the lab's load generator and with wrk, or curl over HTTP/3, on the same CPU."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from lab import certificate
from lab.balancers import BalancerTask, Placement, RunningBalancer, balancer
from lab.bench import Bench, Progress, Row
from lab.debian import DebianSuite
from lab.figure import Figure, paired_ratio
from lab.load import LoadGenerator, LoadReport, Request
from lab.paths import MissingRequirement

CURL = ("curl", "usr/bin/curl")


def run(bench: Bench) -> dict[str, Figure]:
    if not shutil.which("wrk"):
        raise MissingRequirement("wrk is not installed. Run: sudo apt-get install wrk")
    settings, logs = bench.settings, bench.logs
    with LoadGenerator(logs / "loadgen.log", cpus=settings["load_cpus"], endpoints=settings["endpoints"]) as load:
        plain = BalancerTask(endpoints=load.endpoints)
        secure = BalancerTask(endpoints=load.endpoints, certificate=certificate.make(logs), http3=True)
        with _start(bench, "plain", plain) as proxy, _start(bench, "secure", secure) as secure_proxy:
            _measure(bench, load, proxy, secure_proxy)
    return _figures(bench)


def _start(bench: Bench, name: str, task: BalancerTask) -> RunningBalancer:
    folder = bench.logs / name
    folder.mkdir()
    return balancer("haproxy").start(task, Placement.pinned(folder, bench.settings["proxy_cpus"]))


def _measure(bench: Bench, load: LoadGenerator, proxy: RunningBalancer, secure_proxy: RunningBalancer) -> None:
    cases, pace, rounds = bench.settings["cases"], bench.settings["pace"], bench.setting("rounds")
    order = random.Random(bench.settings["seed"])
    progress = Progress(rounds * (sum(len(_arms(case)) for case in cases) + 1))
    for number in range(rounds):
        for case in order.sample(cases, len(cases)):
            target = secure_proxy if case.get("http3") else proxy
            for arm in order.sample(_arms(case), len(_arms(case))):
                bench.record(_row(number, case["id"], arm, _by(arm, bench, load, target, case)))
                progress.step(f"round {number + 1}, {case['id']}, {arm}")
        bench.record(_row(number, pace["id"], "loadgen", _by_pace(bench, load, proxy, number)))
        progress.step(f"round {number + 1}, {pace['id']}")


def _arms(case: dict[str, Any]) -> tuple[str, str]:
    """Returns our load generator and its reference."""
    return ("loadgen", "curl" if case.get("http3") else "wrk")


def _by(arm: str, bench: Bench, load: LoadGenerator, proxy: RunningBalancer, case: dict[str, Any]) -> Row:
    match arm:
        case "loadgen":
            return _by_loadgen(bench, load, proxy, case)
        case "curl":
            return _by_curl(bench, proxy, case)
    return _by_wrk(bench, proxy, case)


def _by_loadgen(bench: Bench, load: LoadGenerator, proxy: RunningBalancer, case: dict[str, Any]) -> Row:
    request = Request(**case.get("request", {}))
    options = {name: case[name] for name in ("connections", "streams", "http3") if name in case}
    return _counts(load.load(proxy.address, request, **options, **_extent(bench, proxy)))


def _by_pace(bench: Bench, load: LoadGenerator, proxy: RunningBalancer, number: int) -> Row:
    pace = bench.settings["pace"]
    options = {"rate": pace["rate"], "connections": pace["connections"], **_extent(bench, proxy)}
    return _counts(load.open_loop(proxy.address, Request(), seed=number, **options))


def _extent(bench: Bench, proxy: RunningBalancer) -> dict[str, Any]:
    return {"warmup_seconds": 0.3, "seconds": bench.setting("seconds"), "processes": proxy.child.processes()}


def _counts(report: LoadReport) -> Row:
    counted = {"requests": report.requests, "served": sum(report.served), "errors": report.errors}
    return {**counted, "seconds": report.seconds, "cpu_ns": report.cpu_ns}


def _by_wrk(bench: Bench, proxy: RunningBalancer, case: dict[str, Any]) -> Row:
    cpus = ",".join(map(str, bench.settings["load_cpus"]))
    argv = ["taskset", "--cpu-list", cpus, "wrk", "--threads", "1", "--connections", str(case["connections"])]
    argv += ["--header", "Connection: close"] if case.get("request", {}).get("close") else []
    argv += ["--duration", f"{bench.setting('seconds'):.0f}s", f"http://{proxy.address}/b/100"]
    before = _cpu_ns(proxy)
    output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    cpu_ns = _cpu_ns(proxy) - before
    total = re.search(r"(\d+) requests in ([\d.]+)s", output)
    if total is None:
        raise RuntimeError(f"wrk reports no requests:\n{output}")
    errors = sum(int(count) for line in output.splitlines() if "errors" in line for count in re.findall(r"\d+", line))
    requests = int(total.group(1))
    counted = {"requests": requests, "served": requests, "errors": errors}
    return {**counted, "seconds": float(total.group(2)), "cpu_ns": cpu_ns}


def _by_curl(bench: Bench, proxy: RunningBalancer, case: dict[str, Any]) -> Row:
    """Sends requests over one connection with a fixed concurrency; every answer that curl reports must be correct."""
    requests, streams = bench.setting("curl_requests"), case["streams"]
    argv = [
        "taskset",
        "--cpu-list",
        ",".join(map(str, bench.settings["load_cpus"])),
        *DebianSuite("forky").program(*CURL),
    ]
    argv += ["--http3-only", "--insecure", "--silent", "--show-error", "--parallel", "--parallel-max", str(streams)]
    argv += ["--output", "/dev/null", "--write-out", "%{http_version} %{http_code} %{size_download}\\n"]
    before, began = _cpu_ns(proxy), time.monotonic()
    done = subprocess.run(
        [*argv, f"https://{proxy.address}/b/100?[1-{requests}]"], check=False, capture_output=True, text=True
    )
    seconds, cpu_ns = time.monotonic() - began, _cpu_ns(proxy) - before
    right = done.stdout.splitlines().count("3 200 100")
    return {
        "requests": requests,
        "served": right,
        "errors": requests - right,
        "seconds": seconds,
        "cpu_ns": cpu_ns,
    }


def _cpu_ns(proxy: RunningBalancer) -> int:
    tasks = (task for pid in proxy.child.processes() for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks)


def _row(number: int, case: str, arm: str, counts: Row) -> Row:
    cost = counts["cpu_ns"] / 1e3 / counts["requests"]
    return {"round": number, "case": case, "arm": arm, "cost": round(cost, 4), "unit": "CPU µs per request", **counts}


def _figures(bench: Bench) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for case, arms in ((case["id"], _arms(case)) for case in bench.settings["cases"]):
        costs = [_by_round(bench, case, arm, lambda row: row["cost"]) for arm in arms]
        rates = [_by_round(bench, case, arm, lambda row: row["requests"] / row["seconds"]) for arm in arms]
        figures[f"{case}.cost"] = paired_ratio(*costs)
        figures[f"{case}.throughput"] = paired_ratio(*rates)
        for arm, cost, rate in zip(arms, costs, rates, strict=True):
            figures[f"{case}.cost.{arm}"] = Figure.of(list(cost.values()), "CPU µs per request")
            figures[f"{case}.throughput.{arm}"] = Figure.of(list(rate.values()), "requests per second")
    pace = bench.settings["pace"]
    rates = _by_round(bench, pace["id"], "loadgen", lambda row: row["requests"] / row["seconds"] / pace["rate"])
    figures["pace"] = Figure.of(list(rates.values()), "ratio")
    off = max(abs(row["requests"] - row["served"]) / row["requests"] for row in bench.rows)
    figures["count"] = Figure.of([off], "share of requests")
    figures["errors"] = Figure.of([sum(row["errors"] for row in bench.rows)], "requests")
    return figures


def _by_round(bench: Bench, case: str, arm: str, value) -> dict[int, float]:
    return {row["round"]: value(row) for row in bench.rows if row["case"] == case and row["arm"] == arm}
