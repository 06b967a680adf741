"""Experiments: lookup, settings and claims."""

from __future__ import annotations

import copy
import importlib.util
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from lab.claim import Expectation
from lab.paths import REPOSITORY

EXPERIMENTS = REPOSITORY / "lab" / "experiments"


class UnknownName(Exception):
    """No experiment, part or arm has this name."""


@dataclass(frozen=True)
class Experiment:
    """One folder: settings, claims, and the code that runs the experiment."""

    name: str
    folder: Path
    settings: dict[str, Any]
    expectations: tuple[Expectation, ...]
    # Selected arms; empty selects all.
    arms: tuple[str, ...] = ()
    # True if it runs in the test cluster.
    in_cluster: bool = False

    @property
    def title(self) -> str:
        return self.settings["title"]

    @property
    def _parts(self) -> list[dict[str, Any]]:
        """Parts that can run alone: variants, unless the experiment names its cases."""
        return self.settings.get(self.settings.get("parts", "variants"), [])

    def balancers(self, parts: Sequence[str]) -> list[str]:
        """Returns the balancers of the parts, in the order of their pinned versions."""
        wanted: set[str] = set()
        for part in self._parts:
            if part["id"] in parts:
                arms = (self.settings["arms"][arm]["balancer"] for arm in part.get("arms", ()))
                wanted |= {part["entry"]} if "entry" in part else {*arms, *part.get("edges", ())}
        return [name for name in self.settings["balancers"] if name in wanted]

    def parts(self, names: list[str]) -> tuple[str, ...]:
        """Returns the parts; raises an error with the valid names if one is unknown."""
        known = [part["id"] for part in self._parts]
        if unknown := [name for name in names if name not in known]:
            there_are = f"there are: {', '.join(known)}" if known else "it has no parts"
            raise UnknownName(f"{self.name} has no part '{unknown[0]}'; {there_are}")
        return tuple(names)

    def with_before_build(self, before: Path) -> Experiment:
        """Returns the experiment with another build of Sheave instead of all peers, to compare two builds.

        It has no claims.
        """
        settings = copy.deepcopy(self.settings)
        if (cases := settings.get("cases", [])) and all("against" in case for case in cases):
            for case in [*cases, settings["idle"]]:
                now, then = case["arms"][0], f"{case['arms'][0]}-before"
                case["arms"], case["against"] = [now, then], [then]
                settings["arms"][then] = {**settings["arms"][now], "program": before}
        elif (variants := settings.get("variants", [])) and all("edges" in variant for variant in variants):
            settings["builds"] = {"sheave-before": before}
            for variant in variants:
                variant["edges"] = ["sheave", *settings["builds"]]
            settings.pop("quick_edges", None)
        else:
            raise UnknownName(f"{self.name} does not compare balancers")
        settings["balancers"] = {"sheave": settings["balancers"]["sheave"]}
        return replace(self, settings=settings, expectations=())

    def with_arms(self, names: Sequence[str]) -> Experiment:
        """Returns the experiment with only these arms. It omits claims about other arms and comparisons with them."""
        parts = self.settings.get("parts", "variants")
        if not all("arms" in part for part in self._parts) or not self._parts:
            raise UnknownName(f"{self.name} has no arms to choose from")
        if unknown := [name for name in names if name not in self.settings["arms"]]:
            raise UnknownName(f"{self.name} has no arm '{unknown[0]}'; there are: {', '.join(self.settings['arms'])}")
        settings = copy.deepcopy(self.settings)
        for part in settings[parts]:
            part["arms"] = [name for name in part["arms"] if name in names]
        settings[parts] = [part for part in settings[parts] if part["arms"]]
        used = {settings["arms"][name]["balancer"] for name in names}
        settings["balancers"] = {name: version for name, version in settings["balancers"].items() if name in used}
        return replace(self, settings=settings, arms=tuple(names))

    def with_cluster(self) -> Experiment:
        """Returns the experiment in the test cluster, with the settings of its table `cluster`."""
        if self.in_cluster:
            return self
        if "cluster" not in self.settings:
            able = [name for name in names() if {"cluster", "in_cluster"} & find(name).settings.keys()]
            raise UnknownName(f"{self.name} does not run in the test cluster; these do: {', '.join(able)}")
        return replace(self, settings={**self.settings, **self.settings["cluster"]}, in_cluster=True)

    @property
    def titles(self) -> dict[str, str]:
        """Titles of all variants, also of those in the test cluster, in the order of the pictures."""
        variants = [*self.settings["variants"], *self.settings.get("cluster", {}).get("variants", ())]
        return {variant["id"]: variant["title"] for variant in variants}

    def check_extent(self, extent: str) -> None:
        """Raises if a full run is requested and the experiment has only one size."""
        if extent == "full" and not any(name.startswith("full_") for name in self.settings):
            raise UnknownName(f"{self.name} has no full size; run it without --full")

    @property
    def resumable(self) -> bool:
        """True if an interrupted run can resume."""
        return self.settings.get("resumable", False)

    def module(self) -> ModuleType:
        """Loads the folder's `experiment.py`, which has a function `run(bench)`."""
        spec = importlib.util.spec_from_file_location(self.name.replace("-", "_"), self.folder / "experiment.py")
        assert spec is not None and spec.loader is not None, "a Python file has a loader"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def find(name: str) -> Experiment:
    """Returns the experiment of this name; raises an error with the valid names if it is unknown."""
    folder = EXPERIMENTS / name
    if not (folder / "experiment.toml").is_file():
        raise UnknownName(f"there is no experiment '{name}'; there are: {', '.join(names())}")
    settings = tomllib.loads((folder / "experiment.toml").read_text())
    expected = tomllib.loads((folder / "expect.toml").read_text())
    expectations = tuple(Expectation(**claim) for claim in expected["claim"])
    return Experiment(name, folder, settings, expectations, in_cluster=settings.get("in_cluster", False))


def names() -> list[str]:
    return sorted(path.parent.name for path in EXPERIMENTS.glob("*/experiment.toml"))
