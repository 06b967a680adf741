"""Sheave in the test cluster, installed as its manifests install it."""
