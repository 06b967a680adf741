"""Tests of the test cluster."""
