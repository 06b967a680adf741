"""What »Load balancing gRPC in K8s without service mesh« ran, in Go, and what comes of it."""
