"""Simulator jobs of experiment.toml: days and scalers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab.autoscale import days
from lab.bench import Bench

#: Target utilization of a scaler without a target.
USUAL_TARGET_PERCENT = 80


@dataclass(frozen=True, eq=False)
class Job:
    """One day under one scaler."""

    part: str
    scaler: str
    # The options of the scaler itself, as text.
    setting: str
    options: dict[str, Any]

    @property
    def arguments(self) -> list[str]:
        """Arguments of the simulator."""
        return [f"scaler={self.scaler}", *(f"{name}={value}" for name, value in self.options.items())]

    @property
    def target(self) -> float:
        """Target share of each pod's slots in use."""
        return self.options.get("target_percent", USUAL_TARGET_PERCENT) / 100


def jobs(bench: Bench) -> list[Job]:
    """Returns the day under each variant, then smaller days under each setting; or each world under each signal."""
    if "worlds" in bench.settings:
        return list(_signal_jobs(bench))
    return [*_day_jobs(bench), *_trade_jobs(bench)]


def _day_jobs(bench: Bench) -> Iterator[Job]:
    day = bench.settings["day"] | bench.settings.get(f"{bench.extent}_day", {})
    for variant in bench.settings["variants"]:
        if _is_wanted(bench, variant["id"]):
            own = variant["options"]
            setting = ", ".join(f"{name}={value}" for name, value in own.items())
            yield Job(days.DAY, variant["id"], setting, day | own)


def _trade_jobs(bench: Bench) -> Iterator[Job]:
    settings = bench.settings
    day = settings["day"] | settings["trade_day"] | (settings["quick_day"] if bench.quick else {})
    for scaler, varied in settings["trade"].items():
        for name, values in varied.items() if _is_wanted(bench, scaler) else ():
            for value in values:
                for seed in bench.setting("seeds"):
                    yield Job(days.TRADE, scaler, f"{name}={value}", day | {name: value, "seed": seed})


def _signal_jobs(bench: Bench) -> Iterator[Job]:
    settings = bench.settings
    for world in settings["worlds"]:
        for signal in world["signals"] if _is_wanted(bench, world["id"]) else ():
            own = settings["signals"][signal]
            small = settings["quick_world"] if bench.quick else {}
            options = settings["day"] | world["options"] | own["options"] | small
            for seed in bench.setting("seeds"):
                yield Job(days.SIGNALS, own["scaler"], f"{world['id']}.{signal}", options | {"seed": seed})


def _is_wanted(bench: Bench, scaler: str) -> bool:
    return not bench.only or scaler in bench.only
