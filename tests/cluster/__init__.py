"""A real Kubernetes for tests: control plane and kube-proxy from source, three nodes as namespaces. Root only."""
