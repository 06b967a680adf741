"""Experiments of »Load balancing gRPC in K8s without service mesh«, in Go, and their results."""
