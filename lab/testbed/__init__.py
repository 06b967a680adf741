"""A small Kubernetes node on one machine: hosts, pods with CPU quotas, and kube-proxy's rules. Root only."""
