"""Plays the variants of experiment.toml sample by sample: in each one every load once, in an order drawn anew."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from lab.article004 import browser, plan, rows
from lab.article004.browser import PROTOCOLS, WILLING, Load, Protocol, Visit, checked
from lab.article004.client import Client
from lab.article004.figures import NEW, RETURNING, WITHOUT, figures
from lab.article004.plan import Turn
from lab.article004.rows import FIRST, NEXT
from lab.article004.stage import Stage, stage
from lab.balancers import nginx
from lab.bench import Bench, Progress
from lab.figure import Figure
from lab.testbed import cluster, link, other_work
from lab.testbed.occupancy import occupy
from lab.testbed.other_work import OtherWork

CONTROLLERS = ("cubic", "bbr")
PLAIN = PROTOCOLS["h2-tls13"]
PAGES_TO_LEARN = 2
PAGES = (FIRST, NEXT)


def obstacle() -> str | None:
    return cluster.obstacle() or link.obstacle(CONTROLLERS) or browser.obstacle()


def prepare() -> dict[str, str]:
    # Whatever the edges are, nginx is behind them: fetched now, for the run has no network but its own.
    return {"browser": browser.version(), "backend": nginx.prepare()}


def run(bench: Bench) -> dict[str, Figure]:
    known = rows.done(bench.rows)
    rounds = [[each.without(known) for each in together] for together in plan.rounds(bench)]
    progress = Progress(sum(len(each.turns) for together in rounds for each in together))
    with occupy() as top, stage(top, bench.settings.get("builds", {}), bench.logs) as made:
        for together in rounds:
            left = [each for each in together if each.turns]
            clients = made.clients(len(left))
            lanes = []
            for client, each in zip(clients, left, strict=True):
                client.use(each.variant.conditions(**bench.settings["line"]), each.variant.congestion, each.seed)
                lanes.append([_Player(bench, made, client, turn) for turn in each.turns])
            _play(lanes, clients, progress)
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


def _play(lanes: Sequence[Sequence[_Player]], clients: Sequence[Client], progress: Progress) -> None:
    """What a client does one after another, the clients at the same time."""
    with ThreadPoolExecutor(max(1, len(lanes))) as threads:
        playing = [threads.submit(_play_in_turn, players, progress) for players in lanes]
        try:
            for each in as_completed(playing):
                each.result()
        except BaseException:
            # Nobody waits for what the others have begun.
            for client in clients:
                client.browser.give_up()
            raise


def _play_in_turn(players: Sequence[_Player], progress: Progress) -> None:
    for player in players:
        player.play()
        progress.step(str(player.turn))


class _Player:
    """What is done in a turn."""

    def __init__(self, bench: Bench, made: Stage, client: Client, turn: Turn) -> None:
        self._bench = bench
        self._made = made
        self._client = client
        self.turn = turn
        self._port = made.edge(turn.edge, turn.variant.congestion)
        self._patience: float = bench.settings["patience_seconds"]

    def play(self) -> None:
        self._visit()
        self._made.check()

    def _visit(self) -> None:
        match self.turn.by:
            case by if by == RETURNING:
                self._come_back(WILLING, PROTOCOLS["h3"].name)
            case by if by == WITHOUT:
                self._come_back(PLAIN, PLAIN.name)
            case by if by == NEW:
                self._visit_without_udp(WILLING, again=False)
            case by:
                protocol = PROTOCOLS[by]
                with self._client.browser.visit(protocol.flags_for(self._port)) as visit:
                    self._record(visit, protocol)

    def _come_back(self, protocol: Protocol, learnt: str) -> None:
        """From a network that lets UDP through, where the browser learns what it may go on by, to one that does not."""
        with self._client.browser.visit(protocol.flags_for(self._port)) as visit:
            loads = [self._load(visit, protocol) for _ in range(PAGES_TO_LEARN)]
        if learnt in loads[-1].by:
            self._visit_without_udp(protocol, again=True)
            return
        for page in PAGES:
            self._keep(Load(None, f"had not learnt to go by {learnt}: {loads[-1].failure or loads[-1].by}"), page)

    def _visit_without_udp(self, protocol: Protocol, *, again: bool) -> None:
        flags = protocol.flags_for(self._port)
        with self._client.without_udp(), self._client.browser.visit(flags, again=again) as visit:
            for page in PAGES:
                self._record(visit, protocol, page)

    def _load(self, visit: Visit, protocol: Protocol) -> Load:
        return visit.load(f"https://{protocol.host}:{self._port}{self.turn.site.path}", self._patience)

    def _record(self, visit: Visit, protocol: Protocol, page: str | None = None) -> None:
        others, dropped = OtherWork(self._made), self._client.udp_dropped()
        load = checked(self._load(visit, protocol), protocol, self.turn.site.round_trips)
        self._keep(load, page, self._client.udp_dropped() - dropped, others.cpus())

    def _keep(self, load: Load, page: str | None, udp_dropped: int = 0, other_work_cpus: float = 0.0) -> None:
        turn = self.turn
        where = {"variant": turn.variant.id, "edge": turn.edge, "site": turn.site.id, "protocol": turn.by}
        beside = {"udp_dropped": udp_dropped, "other_work_cpus": round(other_work_cpus, 3)}
        came_to = rows.load_columns(load, self._patience)
        self._bench.record(rows.EMPTY | where | {"page": page, "sample": turn.sample} | came_to | beside)
