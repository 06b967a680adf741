//! The compiled programs, and the names of what is in them.

/// The object that `build.rs` has compiled.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/l4.o"));

/// A program and the hook that it belongs to.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ProgramHook {
    /// Ingress of the uplink and of the tunnel.
    LbIn,
    /// Ingress of the node's side of a pod's veth.
    PodOut,
    /// Egress of the uplink.
    NodeOut,
}

impl ProgramHook {
    pub(crate) const ALL: [Self; 3] = [Self::LbIn, Self::PodOut, Self::NodeOut];

    /// Returns the name of the program.
    pub fn program(self) -> &'static str {
        match self {
            Self::LbIn => "lb_in",
            Self::PodOut => "pod_out",
            Self::NodeOut => "node_out",
        }
    }
}
