//! The eBPF programs without a network: packet in, verdict, packet out, counters. Needs root, and is skipped without.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

/// Frames.
mod frame;
/// The node.
mod node;
/// A pod on this node.
mod local;
/// Pods on other nodes.
mod remote;
/// The choice of an endpoint.
mod choice;
/// ARP, neighbor discovery, echo.
mod neighbor;
/// ICMP errors.
mod icmp;
/// Fragments.
mod fragment;
/// Cost of a packet.
mod cost;
