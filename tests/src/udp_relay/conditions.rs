//! Conditions of a line, as data.

use std::ops::Range;
use std::time::Duration;

/// Conditions of a line; by default it passes all datagrams at once.
#[derive(Clone, Debug, Default)]
pub struct LineConditions {
    /// Time for which each datagram is delayed, in either direction.
    pub delay: Duration,
    /// Share of the datagrams that are dropped, in either direction, at most three of a direction in a row.
    pub loss_percent: u64,
    /// Share of the datagrams of which one byte is changed, in either direction, at most three of a direction in a row.
    pub corruption_percent: u64,
    /// Share of the ECN-capable datagrams that are marked as having met congestion (RFC 3168), in either direction.
    pub mark_percent: u64,
    /// Numbers of each client's datagrams that are dropped; the first one has number 1.
    pub dropped_from_client: Range<u64>,
    /// Changes of the address that the server sees.
    pub rebinding: Option<LineRebinding>,
    /// Time without any datagram.
    pub outage: Option<LineOutage>,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Changes of the address that the server sees, as by a NAT. The client does not notice, and datagrams to an earlier
/// address are lost.
#[derive(Clone, Copy, Debug)]
pub struct LineRebinding {
    /// Number of the server's datagrams after which the address changes, each time.
    pub every: u64,
    /// Number of changes.
    pub most: u64,
    /// True if the IP address changes, too, and not the port alone. Needs IPv4.
    pub changes_ip: bool,
}

/// Time without any datagram.
#[derive(Clone, Copy, Debug)]
pub struct LineOutage {
    /// Number of the server's datagrams after which it begins.
    pub after: u64,
    pub duration: Duration,
}
