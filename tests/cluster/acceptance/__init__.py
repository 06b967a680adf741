"""Acceptance tests of Sheave in the test cluster, installed by its manifests."""
