//! What the process may do beyond what any other may: bind ports below 1024, where its container lets it.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Makes use of NET_BIND_SERVICE where it is permitted. The image has it as permitted and not as effective, so that it
/// starts in a container without it too; whoever needs it has to ask. Capabilities are a thread's own and pass to those
/// that it starts, so this comes first of all.
pub(crate) fn allow_low_ports() {
    let Ok(mut sets) = capabilities(None) else { return };
    if sets.permitted.contains(CapabilitySet::NET_BIND_SERVICE) {
        sets.effective |= CapabilitySet::NET_BIND_SERVICE;
        // What is permitted may be made effective; where that fails, a bind says so.
        set_capabilities(None, sets).ok();
    }
}
