"""Plots: plot.svg and others from raw.csv."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab import costs, timeline
from lab.article001 import pictures as limits_pictures
from lab.article001 import rows as limits_rows
from lab.article002 import pictures, rows
from lab.article003 import pictures as ways_pictures
from lab.article003 import rows as ways_rows
from lab.article004 import pictures as loads_pictures
from lab.article004 import rows as loads_rows
from lab.autoscale import days
from lab.autoscale import pictures as scaled
from lab.experiment import Experiment, UnknownName, find, names
from lab.replicas import pictures as waits
from lab.replicas import rows as waits_rows


def runs(target: str | None) -> Iterator[tuple[Experiment, Path]]:
    """Returns runs with their experiments: one run folder, the runs of one experiment, or those of all experiments."""
    if target and "/" in target:
        yield _run(Path(target).resolve())
        return
    for experiment in map(find, [target] if target else names()):
        for raw in sorted(experiment.folder.glob("runs/*/raw.csv")):
            yield experiment, raw.parent


def _run(folder: Path) -> tuple[Experiment, Path]:
    """Returns a run in `experiments/NAME/runs` or `.cache/lab/NAME` with its experiment."""
    if not (folder / "raw.csv").is_file():
        raise UnknownName(f"{folder} is not a run folder: it has no raw.csv")
    parent = folder.parent
    return find(parent.parent.name if parent.name == "runs" else parent.name), folder


def draw(folder: Path, experiment: Experiment) -> Path:
    """Draws the pictures of a run's data; returns plot.svg, the overview."""
    import matplotlib

    # The settings of one run's pictures must not change those of the next.
    with matplotlib.rc_context():
        return _draw(folder, experiment)


def _draw(folder: Path, experiment: Experiment) -> Path:
    if (folder / "seconds.csv").is_file():
        return timeline.draw(folder, experiment.titles)
    if (folder / days.MINUTES).is_file():
        return scaled.draw(folder, experiment.titles)
    if days.has_worlds(folder / "raw.csv"):
        return scaled.draw_worlds(folder)
    if rows.has_format(folder / "raw.csv"):
        return pictures.draw(folder, experiment.titles)
    if limits_rows.has_format(folder / "raw.csv"):
        return limits_pictures.draw(folder, experiment.titles)
    if ways_rows.has_format(folder / "raw.csv"):
        return ways_pictures.draw(folder, experiment.title)
    if loads_rows.has_format(folder / "raw.csv"):
        return loads_pictures.draw(folder, experiment.titles)
    if waits_rows.has_format(folder / "raw.csv"):
        return waits.draw(folder, experiment.title)
    return costs.draw(folder, experiment.title)
