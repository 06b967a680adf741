"""The demo without root: the article's application behind Sheave on loopback; a second replica joins."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lab import network
from lab.article.answers import Verdict, judge, summarize
from lab.article.locust_run import LocustRun, hypercorn, locust
from lab.child import Child, wait_until
from lab.demo import config
from lab.demo.table import Table
from lab.paths import REPOSITORY, binary

USERS = 100
REPLICAS = ("app-1", "app-2")
SECONDS_ALONE = 12
SECONDS_TOGETHER = 18


@dataclass(frozen=True)
class Replica:
    name: str
    port: int
    child: Child

    def responds(self) -> bool:
        """Returns true if the replica passes a readiness probe."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


class Demo:
    def __init__(self, running: ExitStack, folder: Path) -> None:
        self._running = running
        self._folder = folder
        self._config = folder / "config"
        self._config.mkdir()
        self._table = Table(REPLICAS, "in flight")
        self._replicas: list[Replica] = []
        # Time at which the second replica's address was written, by the clock of the answers.
        self._joined: float | None = None

    def run(self) -> bool:
        """Runs the demo and prints its progress; returns whether the new replica got its share."""
        print(f"{USERS} users; one replica, and a second one after about {SECONDS_ALONE} s.\n", flush=True)
        first = self._start_replica(REPLICAS[0])
        wait_until(first.responds, first.child, first.name, seconds=60)
        config.write_gateway(self._config)
        self._publish(first)
        address = self._start_sheave()
        argv = locust(f"http://{address}", USERS, "KeepAliveUser")
        self._locust = LocustRun(self._running.enter_context(Child(argv, self._folder / "locust.log", piped=True)))
        self._watch()

        verdict = judge(self._locust.answers, REPLICAS[1], self._joined or time.time())
        self._table.verdict(_closing_line(verdict), verdict.holds)
        return verdict.holds

    def _start_replica(self, name: str) -> Replica:
        port = network.free_port()
        env = {"REPLICA": name, "PYTHONPATH": str(REPOSITORY)}
        child = Child(hypercorn(f"127.0.0.1:{port}"), self._folder / f"{name}.log", env=env)
        return Replica(name, port, self._running.enter_context(child))

    def _publish(self, replica: Replica) -> None:
        self._replicas.append(replica)
        config.write_endpoints(self._config, [replica.port for replica in self._replicas])

    def _start_sheave(self) -> str:
        ready = self._folder / "ready.json"
        argv = [binary("sheave"), "serve", "--config", self._config, "--admin", "127.0.0.1:0", "--ready-file", ready]
        self._sheave = self._running.enter_context(Child(argv, self._folder / "sheave.log"))
        wait_until(ready.is_file, self._sheave, "Sheave's ready file")
        addresses = json.loads(ready.read_text())
        self._admin = addresses["admin"]
        print(f"Dashboard while it runs: http://{self._admin}/dashboard/#/flow\n", flush=True)
        return addresses["listeners"][0]["address"]

    def _watch(self) -> None:
        """Prints a line every second, and starts the second replica in the middle."""
        self._table.header()
        began, second, last, told = time.time(), 0, None, False
        while last is None or second < last:
            second += 1
            self._locust.collect(began + second, self._check)
            self._print_second(began, second)
            if second == SECONDS_ALONE:
                self._table.event(f"{REPLICAS[1]} starts")
                newcomer = self._start_replica(REPLICAS[1])
                threading.Thread(target=self._join_when_ready, args=(newcomer,), daemon=True).start()
            if self._joined and not told:
                told, last = True, second + SECONDS_TOGETHER
                self._table.event(f"{REPLICAS[1]} answers: its address was added to {self._config.name}/endpoints.yaml")

    def _join_when_ready(self, newcomer: Replica) -> None:
        wait_until(newcomer.responds, newcomer.child, newcomer.name, seconds=60)
        self._publish(newcomer)
        self._joined = time.time()

    def _check(self) -> None:
        for child in (self._sheave, self._locust.child, *(replica.child for replica in self._replicas)):
            child.check()

    def _print_second(self, began: float, second: int) -> None:
        latest = [answer for answer in self._locust.answers if second - 1 <= answer.received_at - began < second]
        self._table.line(second, summarize(latest), self._in_flight())

    def _in_flight(self) -> dict[str, int]:
        """Returns the requests in flight by replica, from Sheave's admin API."""
        with urllib.request.urlopen(f"http://{self._admin}/api/v1/backends", timeout=5) as answer:
            backends = json.load(answer)
        by_address = {
            endpoint["address"]: endpoint["in_flight"]
            for backend in backends["backends"]
            for endpoint in backend["endpoints"]
        }
        return {replica.name: by_address.get(f"127.0.0.1:{replica.port}", 0) for replica in self._replicas}


def _closing_line(verdict: Verdict) -> str:
    if verdict.first_request_seconds is None:
        return f"{REPLICAS[1]} got no request at all; {verdict.failures} of {verdict.requests} requests failed"
    return (
        f"{REPLICAS[1]} got its first request {verdict.first_request_seconds * 1000:.0f} ms after it joined and"
        f" {verdict.share:.0%} of all requests from then on\n(fair: 50 %; lowest in any 5 s:"
        f" {verdict.lowest_share:.0%}); {verdict.failures} of {verdict.requests} requests failed."
        f" In the article, a Kubernetes Service gave its new replica nothing."
    )
