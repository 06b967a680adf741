//! Linux capabilities of the process: binding ports below 1024, announcing addresses and loading eBPF programs, if its
//! container permits it.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Makes the permitted capabilities effective. The image has them as permitted and not as effective, so that it also
/// starts in a container without them; a process then has to raise them itself. Capabilities belong to a thread and are
/// inherited by the threads that it starts, so this runs first.
pub(crate) fn take_permitted() {
    let Ok(mut sets) = capabilities(None) else { return };
    let wanted = CapabilitySet::NET_BIND_SERVICE
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_RAW
        | CapabilitySet::BPF
        | CapabilitySet::PERFMON;
    let permitted = sets.permitted.intersection(wanted);
    if !sets.effective.contains(permitted) {
        sets.effective |= permitted;
        // A permitted capability may be made effective. If that fails, the operation that needs it
        // reports the error.
        set_capabilities(None, sets).ok();
    }
}
