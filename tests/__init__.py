"""Tests from outside: the Rust crate of end to end tests, and beside it a real Kubernetes for tests."""
