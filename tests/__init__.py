"""External tests: the Rust crate of end-to-end tests, and a real Kubernetes cluster."""
