//! Reasons why the programs drop packets, in the order of `bpf/maps.h`.

/// Reason why a packet was dropped.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DropReason {
    /// The packet is cut off, or its headers contradict each other.
    Malformed,
    /// The virtual address has no service with this port and protocol.
    NoService,
    /// The service has no endpoint.
    NoEndpoint,
    /// Another node has chosen this one, and this node has no pod for it.
    NotLocal,
    /// Neither TCP, UDP nor a message of ICMP that is handled.
    Protocol,
    /// A fragment came before the first one of its packet.
    NoFirstFragment,
    /// An ICMP error is about no connection that is known.
    IcmpUnmatched,
    /// The packet does not fit the tunnel; the client was told.
    TooBig,
    /// Full NAT has no source port left.
    NoNatPort,
    /// A pod would receive its own packet.
    Hairpin,
    /// The kernel refused to change the packet.
    RewriteFailed,
    /// A packet in the tunnel was not for a virtual address.
    NotForTunnel,
    /// The client is in none of the service's ranges.
    SourceRange,
}

pub(crate) const DROP_REASONS: [DropReason; 13] = [
    DropReason::Malformed,
    DropReason::NoService,
    DropReason::NoEndpoint,
    DropReason::NotLocal,
    DropReason::Protocol,
    DropReason::NoFirstFragment,
    DropReason::IcmpUnmatched,
    DropReason::TooBig,
    DropReason::NoNatPort,
    DropReason::Hairpin,
    DropReason::RewriteFailed,
    DropReason::NotForTunnel,
    DropReason::SourceRange,
];

impl DropReason {
    /// Returns the label of the reason in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoService => "no_service",
            Self::NoEndpoint => "no_endpoint",
            Self::NotLocal => "not_local",
            Self::Protocol => "protocol",
            Self::NoFirstFragment => "no_first_fragment",
            Self::IcmpUnmatched => "icmp_unmatched",
            Self::TooBig => "too_big",
            Self::NoNatPort => "no_nat_port",
            Self::Hairpin => "hairpin",
            Self::RewriteFailed => "rewrite_failed",
            Self::NotForTunnel => "not_for_tunnel",
            Self::SourceRange => "source_range",
        }
    }
}
