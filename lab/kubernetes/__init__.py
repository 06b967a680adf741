"""Experiments in the test cluster: a real Kubernetes, whose pods are processes of this machine. Root only."""
