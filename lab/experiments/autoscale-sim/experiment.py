"""Simulates the same day under each scaler, and smaller days under each scaler with other settings."""

from lab.autoscale.simulation import run

__all__ = ["run"]
