"""Runs the variants of experiment.toml sample by sample; each sample has every load once, in random order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from lab.article004 import browser, plan, rows
from lab.article004.browser import DISCOVERING, PROTOCOLS, PageLoad, Protocol, Visit, check_protocol
from lab.article004.client import Client
from lab.article004.figures import NEW, RETURNING, WITHOUT, figures
from lab.article004.plan import PlannedLoad
from lab.article004.rows import FIRST, NEXT
from lab.article004.setup import PageLoadSetup, open_setup
from lab.balancers import nginx
from lab.bench import Bench, Progress
from lab.figure import Figure
from lab.testbed import cluster, link, other_work
from lab.testbed.other_work import OtherCpuTime
from lab.testbed.ownership import acquire

CONTROLLERS = ("cubic", "bbr")
PLAIN = PROTOCOLS["h2-tls13"]
PAGES_TO_LEARN = 2
PAGES = (FIRST, NEXT)


def obstacle() -> str | None:
    return cluster.obstacle() or link.obstacle(CONTROLLERS) or browser.obstacle()


def prepare() -> dict[str, str]:
    # nginx is behind every edge. It is fetched now, because the run has an isolated network.
    return {"browser": browser.version(), "backend": nginx.prepare()}


def run(bench: Bench) -> dict[str, Figure]:
    known = rows.done(bench.rows)
    rounds = [[each.without(known) for each in together] for together in plan.rounds(bench)]
    progress = Progress(sum(len(each.planned) for together in rounds for each in together))
    with acquire() as top, open_setup(top, bench.settings.get("builds", {}), bench.logs) as setup:
        for together in rounds:
            left = [each for each in together if each.planned]
            clients = setup.clients(len(left))
            queues = []
            for client, each in zip(clients, left, strict=True):
                client.apply(each.variant.conditions(**bench.settings["line"]), each.variant.congestion, each.seed)
                queues.append([_LoadRun(bench, setup, client, planned_load) for planned_load in each.planned])
            _run_clients(queues, clients, progress)
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


def _run_clients(queues: Sequence[Sequence[_LoadRun]], clients: Sequence[Client], progress: Progress) -> None:
    """Runs the clients concurrently; each client runs its loads one after the other."""
    with ThreadPoolExecutor(max(1, len(queues))) as threads:
        running = [threads.submit(_run_in_order, load_runs, progress) for load_runs in queues]
        try:
            for each in as_completed(running):
                each.result()
        except BaseException:
            # Aborts the loads of the other clients.
            for client in clients:
                client.browser.abort()
            raise


def _run_in_order(load_runs: Sequence[_LoadRun], progress: Progress) -> None:
    for load_run in load_runs:
        load_run.run()
        progress.step(str(load_run.planned_load))


class _LoadRun:
    """Execution of one planned load."""

    def __init__(self, bench: Bench, setup: PageLoadSetup, client: Client, planned_load: PlannedLoad) -> None:
        self._bench = bench
        self._setup = setup
        self._client = client
        self.planned_load = planned_load
        self._port = setup.edge(planned_load.edge, planned_load.variant.congestion)
        self._timeout: float = bench.settings["patience_seconds"]

    def run(self) -> None:
        self._visit()
        self._setup.check()

    def _visit(self) -> None:
        match self.planned_load.by:
            case by if by == RETURNING:
                self._learn_then_block_udp(DISCOVERING, PROTOCOLS["h3"].name)
            case by if by == WITHOUT:
                self._learn_then_block_udp(PLAIN, PLAIN.name)
            case by if by == NEW:
                self._visit_without_udp(DISCOVERING, again=False)
            case by:
                protocol = PROTOCOLS[by]
                with self._client.browser.visit(protocol.flags_for(self._port)) as visit:
                    self._record(visit, protocol)

    def _learn_then_block_udp(self, protocol: Protocol, expected_protocol: str) -> None:
        """Loads pages with UDP until the browser has learned the protocol, then visits without UDP."""
        with self._client.browser.visit(protocol.flags_for(self._port)) as visit:
            loads = [self._load(visit, protocol) for _ in range(PAGES_TO_LEARN)]
        if expected_protocol in loads[-1].by:
            self._visit_without_udp(protocol, again=True)
            return
        for page in PAGES:
            self._store(
                PageLoad(None, f"did not learn to use {expected_protocol}: {loads[-1].failure or loads[-1].by}"),
                page,
            )

    def _visit_without_udp(self, protocol: Protocol, *, again: bool) -> None:
        flags = protocol.flags_for(self._port)
        with self._client.without_udp(), self._client.browser.visit(flags, again=again) as visit:
            for page in PAGES:
                self._record(visit, protocol, page)

    def _load(self, visit: Visit, protocol: Protocol) -> PageLoad:
        return visit.load(f"https://{protocol.host}:{self._port}{self.planned_load.site.path}", self._timeout)

    def _record(self, visit: Visit, protocol: Protocol, page: str | None = None) -> None:
        others, dropped = OtherCpuTime(self._setup), self._client.udp_dropped()
        load = check_protocol(self._load(visit, protocol), protocol, self.planned_load.site.round_trips)
        self._store(load, page, self._client.udp_dropped() - dropped, others.cpus())

    def _store(self, load: PageLoad, page: str | None, udp_dropped: int = 0, other_work_cpus: float = 0.0) -> None:
        planned_load = self.planned_load
        where = {
            "variant": planned_load.variant.id,
            "edge": planned_load.edge,
            "site": planned_load.site.id,
            "protocol": planned_load.by,
        }
        extra = {"udp_dropped": udp_dropped, "other_work_cpus": round(other_work_cpus, 3)}
        outcome = rows.load_columns(load, self._timeout)
        self._bench.record(rows.EMPTY | where | {"page": page, "sample": planned_load.sample} | outcome | extra)
