//! Transparent mode on one node: takes connections to Services by rules of the kernel, and lets them go to kube-proxy's
//! rules if this process ends or hangs.
//!
//! [`RuleTable`] holds the rules, [`TableLease`] keeps them in force, [`LeaseKeeper`] decides when, [`Conntrack`]
//! forgets connections that the rules came too late for, [`node_findings`] says what else on the node translates
//! addresses. The crate knows no proxy, no Snapshot and no API server. Mechanism and measurements:
//! `docs/internals/transparent.md`.
#![warn(missing_docs)]

/// Rules that take connections.
mod rule_table;
/// Lease and counters of the rules.
mod table_lease;
/// Marks of our own packets, and of clients.
mod socket_mark;
/// Options of sockets.
mod socket_options;
/// When the rules are in force.
mod lease;
/// The kernel's table of connections.
mod conntrack;
/// The rate at which connections are reset.
mod reset_pacer;
/// Routes to clients.
mod client_route;
/// Other programs on the node.
mod findings;
/// Messages of nftables.
mod nftables;
/// Netlink to netfilter.
mod netlink;
/// Attributes of netlink messages.
mod attributes;

use std::io;

use thiserror::Error;

pub use client_route::is_routed_to_node;
pub use conntrack::{Conntrack, DeletedConnections, TrackedConnection};
pub use findings::{NodeFinding, node_findings};
pub use lease::{
    LEASE_TIMEOUT, LeaseAction, LeaseKeeper, NodeObservation, RENEWAL_INTERVAL, WithdrawalCause,
};
pub use reset_pacer::ResetPacer;
pub use rule_table::{ProxyAddresses, RuleTable, RuleTableConfig};
pub use socket_mark::{MarkRange, MarkRangeError, SocketMark};
pub use socket_options::{mark_socket, original_destination};
pub use table_lease::TableLease;

/// Error of the kernel's rules or of its table of connections.
#[derive(Debug, Error)]
pub enum InterceptError {
    /// The process may not change the rules of its network namespace.
    #[error("transparent mode needs the capability NET_ADMIN, which this process does not have")]
    MissingCapability,
    /// The kernel has no nftables.
    #[error("this kernel has no nftables, which transparent mode needs (CONFIG_NF_TABLES_INET)")]
    NoNftables,
    /// The kernel does not know tables with an owner.
    #[error(
        "this kernel has no nftables tables with an owner, which go when the process ends: Linux 5.12 or newer is \
         needed"
    )]
    NoOwnedTables,
    /// A table of this name exists, and belongs to another program; nothing was changed.
    #[error("an nftables table inet {name} exists already and is not ours: it is left as it is")]
    ForeignTable {
        /// Name of the table.
        name: String,
    },
    /// The kernel refused a part of the table; nothing was changed.
    #[error("the kernel refuses {part} of the nftables table")]
    RefusedPart {
        /// The part in words.
        part: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// More elements than the table may have; nothing was changed.
    #[error("{count} {what} are more than the {limit} that the nftables table may have")]
    TooMany {
        /// Kind of the elements.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The largest number.
        limit: usize,
    },
    /// The datagram that renews the lease did not reach its rule.
    #[error(
        "the lease of the rules is not renewed: another rule drops, or does not track, datagrams on lo"
    )]
    LeaseNotRenewed,
    /// Netlink failed.
    #[error("netlink to the kernel's netfilter failed")]
    Netlink(#[source] io::Error),
}

impl From<io::Error> for InterceptError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM) => Self::MissingCapability,
            _ => Self::Netlink(error),
        }
    }
}
