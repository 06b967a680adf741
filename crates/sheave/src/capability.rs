//! What the process may do beyond what any other may: bind ports below 1024, and carry addresses, where its container lets
//! it.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Makes use of what is permitted. The image has these as permitted and not as effective, so that it starts in a container
/// without them too; whoever needs one has to ask. Capabilities are a thread's own and pass to those that it starts, so
/// this comes first of all.
pub(crate) fn take_permitted() {
    let Ok(mut sets) = capabilities(None) else { return };
    let wanted =
        CapabilitySet::NET_BIND_SERVICE | CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
    let permitted = sets.permitted.intersection(wanted);
    if !sets.effective.contains(permitted) {
        sets.effective |= permitted;
        // What is permitted may be made effective; where that fails, whatever needs it says so.
        set_capabilities(None, sets).ok();
    }
}
