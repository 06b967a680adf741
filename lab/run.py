"""One run of an experiment, from preparation to written results."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab import environment, network, plot, results, resumption
from lab.balancers import balancer
from lab.bench import Bench, Extent, print_status
from lab.child import raise_open_files
from lab.claim import Claim
from lab.experiment import Experiment
from lab.figure import Figure
from lab.kubernetes import session
from lab.paths import CACHE, MissingRequirement, build


@dataclass(frozen=True)
class RunOutcome:
    """Result of a run."""

    folder: Path
    claims: list[Claim]

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)


def run(
    experiment: Experiment,
    *,
    extent: Extent = "usual",
    only: tuple[str, ...] = (),
    json_file: Path | None = None,
    resume: bool = False,
) -> RunOutcome:
    """Runs an experiment, or the rest of an interrupted run; writes the results before it checks the claims."""
    module = experiment.module()
    if obstacle := getattr(module, "cluster_obstacle" if experiment.in_cluster else "obstacle", lambda: None)():
        raise MissingRequirement(f"{experiment.name} cannot run here: {obstacle}")
    build(
        *experiment.settings.get("programs", ("sheave", "loadgen")), shipped=experiment.settings.get("shipped", False)
    )
    # An experiment may fetch other requirements than balancers, and names their versions.
    versions = getattr(module, "prepare", dict)() | prepare(experiment, _balancers(experiment, extent, only))
    # The cluster's nodes have namespaces of their own, which this process reaches from the machine's.
    network_used = "the test cluster's" if experiment.in_cluster else network.isolate()
    raise_open_files()
    run_environment = environment.describe(network_used, versions)
    if experiment.in_cluster:
        run_environment["versions"] = {"kubernetes": session.version(), **versions}
        # Of the routes of nodes and pods.
        run_environment["congestion_control"] = network.CONGESTION_CONTROL

    builds = {name: str(program) for name, program in experiment.settings.get("builds", {}).items()}
    identity = {
        "extent": extent,
        "only": list(only),
        "commit": run_environment["commit"],
        "versions": versions,
        "builds": builds,
    }
    bench = (
        _resumed_bench(experiment, extent, only, identity) if resume else _new_bench(experiment, extent, only, identity)
    )
    if bench.quick:
        bench.note("A quick run: too few rounds to stand for a claim.")
    if environment.is_loaded(run_environment):
        bench.note(f"The machine was loaded at the start: {run_environment['load_average'][0]:.2f} runnable tasks.")
    figures = _run_and_report_interruption(module.run, bench)

    expectations = [claim for claim in experiment.expectations if claim.cluster == experiment.in_cluster]
    expectations = [claim for claim in expectations if claim.quick or not bench.quick]
    expectations = [claim for claim in expectations if claim.figure in figures or not bench.partial]
    claims = [expectation.check(figures) for expectation in expectations]
    results.write(bench, run_environment, figures, claims)
    if json_file:
        results.write_json(json_file, bench, run_environment, figures, claims)
    if experiment.resumable:
        resumption.end(bench.folder)
    plot.draw(bench.folder, experiment)
    return RunOutcome(bench.folder, claims)


def prepare(experiment: Experiment, names: Iterable[str]) -> dict[str, str]:
    """Fetches the balancers of an experiment; raises if a version differs from the pinned one."""
    versions = {}
    for name in names:
        pinned = experiment.settings["balancers"][name]
        found = balancer(name).prepare()
        if pinned and not found.startswith(f"{pinned}."):
            raise MissingRequirement(
                f"{name} {found} is what there is, but {experiment.name} is about {name} {pinned}:"
                f" put {name} {pinned} into {CACHE / 'peers'}, or change experiment.toml and run everything anew"
            )
        versions[name] = found
    return versions


def _balancers(experiment: Experiment, extent: Extent, only: tuple[str, ...]) -> list[str]:
    """Returns the balancers of the run: all, or those of the selected variants."""
    wanted = only or experiment.settings.get(f"{extent}_variants")
    return experiment.balancers(wanted) if wanted else list(experiment.settings["balancers"])


def _run_and_report_interruption(function, bench: Bench) -> dict[str, Figure]:
    try:
        return function(bench)
    except BaseException:
        if bench.rows:
            print_status(f"\nstopped early; the {len(bench.rows)} measurements so far are in {bench.folder}/raw.csv")
            if bench.experiment.resumable:
                print_status("--resume goes on from there")
        raise


def _new_bench(
    experiment: Experiment, extent: Extent, only: tuple[str, ...], identity: resumption.RunIdentity
) -> Bench:
    """Creates a bench. Complete runs are for committing and lie with the experiment; others lie in the cache."""
    now = datetime.datetime.now()
    if _counts_for_claims(experiment, extent, only):
        kind = ("-cluster" if experiment.in_cluster else "") + ("-full" if extent == "full" else "")
        folder = _new_folder(experiment.folder / "runs" / f"{now:%Y-%m-%d}-{environment.machine_name()}{kind}")
    else:
        folder = _new_folder(_cache(experiment) / _timestamp())
    if experiment.resumable:
        resumption.begin(folder, identity)
    return Bench(experiment, extent, folder, _logs(experiment), only=only)


def _resumed_bench(
    experiment: Experiment, extent: Extent, only: tuple[str, ...], identity: resumption.RunIdentity
) -> Bench:
    """Returns a bench with the existing rows."""
    place = experiment.folder / "runs" if _counts_for_claims(experiment, extent, only) else _cache(experiment)
    folder = resumption.find(place.glob("*"), identity)
    raw = folder / "raw.csv"
    resumption.drop_partial_line(raw)
    rows = results.read_rows(raw) if raw.is_file() else []
    bench = Bench(experiment, extent, folder, _logs(experiment), rows=rows, only=only)
    bench.note(f"The run was interrupted and resumed: {len(rows)} measurements are from before {_timestamp()}.")
    print_status(f"going on with {folder}, which has {len(rows)} measurements")
    return bench


def _counts_for_claims(experiment: Experiment, extent: Extent, only: tuple[str, ...]) -> bool:
    """Returns true if the run can support the experiment's claims."""
    return extent != "quick" and not only and not experiment.arms and bool(experiment.expectations)


def _cache(experiment: Experiment) -> Path:
    return CACHE / "lab" / experiment.name


def _logs(experiment: Experiment) -> Path:
    return _new_folder(_cache(experiment) / "logs" / _timestamp())


def _timestamp() -> str:
    return f"{datetime.datetime.now():%Y-%m-%dT%H%M%S}"


def _new_folder(wanted: Path) -> Path:
    """Creates a folder with this name, or with this name and a number."""
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    folder.mkdir(parents=True)
    return folder
