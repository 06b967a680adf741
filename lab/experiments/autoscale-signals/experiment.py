"""Simulates days of several worlds, each under several signals."""

from lab.autoscale.simulation import run

__all__ = ["run"]
