"""Measures the cost of a request to a proxy; experiment.toml lists the requests, expect.toml the claims."""

from __future__ import annotations

import http.client
import random
import ssl
from contextlib import ExitStack
from typing import Any

from lab import certificate
from lab.balancers import BalancerTask, Placement, RunningBalancer, balancer
from lab.bench import Bench, Progress, Row, print_status
from lab.certificate import Certificate
from lab.figure import Figure, paired_ratio
from lab.load import LoadGenerator, LoadReport, Request

GIB = 1 << 30
# Share of the time that a proxy waits for its CPU, above which the measurement counts as disturbed.
DISTURBED = 0.05

# Most arms have one process.
Arms = dict[str, list[RunningBalancer]]
UNITS = {
    "request": "CPU µs per request",
    "handshake": "CPU µs per handshake",
    "GiB": "CPU seconds per GiB",
}


def run(bench: Bench) -> dict[str, Figure]:
    _measure_requests(bench, _cases(bench))
    if not bench.only:
        _measure_idle_connections(bench)
    _note_disturbance(bench)
    return _figures(bench)


def _cases(bench: Bench) -> list[dict[str, Any]]:
    return [case for case in bench.settings["cases"] if not bench.only or case["id"] in bench.only]


def _measure_requests(bench: Bench, cases: list[dict[str, Any]]) -> None:
    own = certificate.make(bench.logs)
    wanted = {name: arm for name, arm in bench.settings["arms"].items() if any(name in case["arms"] for case in cases)}
    with ExitStack() as running:
        load = running.enter_context(
            LoadGenerator(
                bench.logs / "loadgen.log",
                cpus=bench.settings["load_cpus"],
                endpoints=bench.settings["endpoints"],
            )
        )
        print_status(f"starting {', '.join(wanted)}")
        arms = {
            name: [running.enter_context(_start(bench, load, name, copy, own)) for copy in _run_names(name, arm)]
            for name, arm in wanted.items()
        }
        for name, copies in arms.items():
            for copy in copies:
                _check_forwarding(name, wanted[name], copy)
        _measure_cpu(bench, load, arms, cases)


def _measure_idle_connections(bench: Bench) -> None:
    with LoadGenerator(bench.logs / "loadgen.log", cpus=bench.settings["load_cpus"], endpoints=1) as load:
        _measure_memory(bench, load)


def _run_names(name: str, arm: dict[str, Any]) -> list[str]:
    return [name, *(f"{name}-{copy}" for copy in range(2, arm.get("copies", 1) + 1))]


def _start(
    bench: Bench, load: LoadGenerator, name: str, run_name: str, own: Certificate | None = None
) -> RunningBalancer:
    settings = dict(bench.settings["arms"][name])
    peer, cpus = balancer(settings.pop("balancer")), settings.pop("cpus")
    settings.pop("rounds", None)
    settings.pop("copies", None)
    program = settings.pop("program", None)
    if settings.pop("tls", False):
        settings["certificate"] = own
    folder = bench.logs / run_name
    folder.mkdir()
    return peer.start(BalancerTask(endpoints=load.endpoints, **settings), Placement.pinned(folder, cpus, program))


def _check_forwarding(name: str, settings: dict[str, Any], arm: RunningBalancer) -> None:
    """Checks that every arm does the same work: the endpoint learns the client's address."""
    if settings.get("endpoint_protocol") == "grpc":
        # Not every balancer accepts other requests than calls there, and each call is checked anyway.
        return
    client = _client(arm.address, tls="tls" in settings)
    # A host and path that every arm routes; the answer has the head as the endpoint received it.
    client.request("GET", "/p57/echo", headers={"Host": "h43.lab.example"})
    answer = client.getresponse()
    head = answer.read().decode("latin-1").lower()
    client.close()
    if answer.status != 200 or "x-forwarded-for: 127.0.0.1" not in head:
        raise RuntimeError(f"{name} answers {answer.status} and forwards this head:\n{head}")


def _client(address: str, *, tls: bool) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    if not tls:
        return http.client.HTTPConnection(host, int(port), timeout=10)
    # The client does not know the authority, and the certificate has no address.
    trusting = ssl._create_unverified_context()
    return http.client.HTTPSConnection(host, int(port), timeout=10, context=trusting)


def _measure_cpu(bench: Bench, load: LoadGenerator, arms: Arms, cases: list[dict[str, Any]]) -> None:
    rounds = bench.setting("rounds")
    order = random.Random(bench.settings["seed"])
    progress = Progress(sum(min(rounds, _rounds(bench, case, name)) for case in cases for name in case["arms"]))
    for number in range(rounds):
        for case in order.sample(cases, len(cases)):
            for name in order.sample(case["arms"], len(case["arms"])):
                if number < _rounds(bench, case, name):
                    report = _load(bench, load, name, arms[name], case, seed=number)
                    bench.record(_cpu_row(number, case, name, report))
                    progress.step(f"round {number + 1}, {case['id']}, {name}")


def _rounds(bench: Bench, case: dict[str, Any], name: str) -> int:
    """Returns the number of rounds in which an arm of a case takes part."""
    everyone = bench.settings["rounds"]
    return min(case.get("rounds", everyone), bench.settings["arms"][name].get("rounds", everyone))


def _load(
    bench: Bench, load: LoadGenerator, name: str, arm: list[RunningBalancer], case: dict[str, Any], seed: int
) -> LoadReport:
    request = Request(**case.get("request", {}))
    extent = {
        "connections": case["connections"],
        "warmup_seconds": bench.setting("warmup_seconds"),
        "seconds": bench.setting("seconds"),
        "processes": [process for copy in arm for process in copy.child.processes()],
    }
    if "rate" in case:
        return load.open_loop(arm[0].address, request, rate=case["rate"], seed=seed, **extent)
    extent["http3"] = case.get("http3", False)
    if "resume" in case:
        ask = name in case.get("asking", ())
        return load.handshakes(arm[0].address, host=certificate.HOST, resume=case["resume"], ask=ask, **extent)
    others, streams = [copy.address for copy in arm[1:]], case.get("streams")
    return load.load(arm[0].address, request, spin=case.get("spin", True), others=others, streams=streams, **extent)


def _cpu_row(number: int, case: dict[str, Any], name: str, report: LoadReport) -> Row:
    request = Request(**case.get("request", {}))
    if case["per"] == "GiB":
        amount = report.requests * max(request.body_bytes, request.answer_bytes) / GIB
        cost = report.cpu_ns / 1e9 / amount
    else:
        cost = report.cpu_ns / 1e3 / report.requests
    return {
        "round": number,
        "case": case["id"],
        "arm": name,
        "cost": round(cost, 4),
        "unit": UNITS[case["per"]],
        "requests": report.requests,
        "errors": report.errors,
        "first_error": report.first_error or "",
        "seconds": round(report.seconds, 4),
        "cpu_ns": report.cpu_ns,
        "wait_ns": report.wait_ns,
        "latency_p50_us": report.latency_p50_us,
        "latency_p99_us": report.latency_p99_us,
    }


def _measure_memory(bench: Bench, load: LoadGenerator) -> None:
    idle = bench.settings["idle"]
    rounds = idle["quick_rounds"] if bench.quick else idle["rounds"]
    progress = Progress(rounds * len(idle["arms"]))
    for number in range(rounds):
        for name in idle["arms"]:
            with _start(bench, load, name, f"{name}-idle-{number}") as arm:
                bench.record(_idle_row(number, name, load, arm, idle))
            progress.step(f"idle connections, {name}")


def _idle_row(number: int, name: str, load: LoadGenerator, arm: RunningBalancer, idle: dict[str, Any]) -> Row:
    request, at_once, connections = Request(**idle["request"]), idle["at_once"], idle["connections"]
    # A proxy's first requests allocate memory that is no cost of a client's connection. Connections to endpoints are no
    # such cost either; Sheave opens more of them for a POST until it has observed the endpoint's keep-alive time.
    load.load(arm.address, Request(), connections=at_once, warmup_seconds=0, seconds=idle["priming_seconds"])
    load.load_exactly(arm.address, request, connections=at_once, requests=10 * at_once)
    before = arm.child.pss_bytes()
    held = load.open_idle(arm.address, request, connections=connections, at_once=at_once)
    after = arm.child.pss_bytes()
    # Also counts the connections that the proxy has closed.
    released = load.close_idle()
    return {
        "round": number,
        "case": "idle",
        "arm": name,
        "cost": round((after - before) / held["held"], 1),
        "unit": "bytes per idle connection",
        "requests": held["held"],
        "errors": released["errors"],
        "first_error": released["first_error"] or "",
        "seconds": 0,
        "cpu_ns": 0,
        "wait_ns": 0,
        "latency_p50_us": 0,
        "latency_p99_us": 0,
    }


def _note_disturbance(bench: Bench) -> None:
    """Notes disturbed measurements. Only an arm with an exclusive CPU can detect other load by its own waiting."""
    shared = {name for name, arm in bench.settings["arms"].items() if len(arm["cpus"]) > 1}
    alone = [row for row in bench.rows if row["seconds"] and row["arm"] not in shared]
    disturbed = [row for row in alone if row["wait_ns"] > DISTURBED * row["seconds"] * 1e9]
    if disturbed:
        bench.note(
            f"The machine was loaded: in {len(disturbed)} of {len(alone)} measurements the proxy waited"
            f" for its CPU more than {DISTURBED:.0%} of the time."
        )


def _figures(bench: Bench) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for case in _cases(bench):
        costs = {name: _costs(bench, case["id"], name) for name in case["arms"]}
        medians = {name: Figure.of(list(cost.values()), _unit(bench, case["id"])) for name, cost in costs.items()}
        best = min(case["against"], key=lambda name: medians[name].value)
        ours, *others = case["arms"]
        figures[case["id"]] = paired_ratio(costs[ours], costs[best])
        figures |= {f"{case['id']}: {ours} / {name}": paired_ratio(costs[ours], costs[name]) for name in others}
        figures |= {f"{case['id']}.{name}": median for name, median in medians.items()}
        if "rate" in case:
            figures |= _latencies(bench, case)
        if case["per"] == "handshake":
            rates = {name: [1e6 / each for each in cost.values()] for name, cost in costs.items()}
            unit = "handshakes per CPU second"
            figures |= {f"{case['id']}: rate.{name}": Figure.of(rate, unit) for name, rate in rates.items()}
            figures[f"{case['id']}: rate"] = _ratio_of_rates(costs[ours], costs[best])
    for name in bench.settings["idle"]["arms"] if not bench.only else ():
        figures[f"idle.{name}"] = Figure.of(list(_costs(bench, "idle", name).values()), _unit(bench, "idle"))
    for peer in bench.settings["balancers"]:
        figures[f"errors.{peer}"] = Figure.of([_errors(bench, peer)], "requests")
    return figures


def _ratio_of_rates(ours: dict[int, float], theirs: dict[int, float]) -> Figure:
    """Returns the ratio of rates in the same CPU time."""
    return paired_ratio(theirs, ours)


def _latencies(bench: Bench, case: dict[str, Any]) -> dict[str, Figure]:
    """Returns latencies of an open loop; in a closed loop they only restate the throughput."""
    figures = {}
    for quantile in ("p50", "p99"):
        for name in case["arms"]:
            rows = [row for row in bench.rows if row["case"] == case["id"] and row["arm"] == name]
            samples = [row[f"latency_{quantile}_us"] for row in rows]
            figures[f"{case['id']}: {quantile}.{name}"] = Figure.of(samples, "µs")
    return figures


def _costs(bench: Bench, case: str, arm: str) -> dict[int, float]:
    """Returns the costs by round."""
    return {row["round"]: row["cost"] for row in bench.rows if row["case"] == case and row["arm"] == arm}


def _unit(bench: Bench, case: str) -> str:
    return next(row["unit"] for row in bench.rows if row["case"] == case)


def _errors(bench: Bench, peer: str) -> float:
    arms = bench.settings["arms"]
    return sum(row["errors"] for row in bench.rows if arms[row["arm"]]["balancer"] == peer)
