//! The hash of a connection, as `bpf/choose.h` has it: so user space can say which endpoint the kernel chooses.

use crate::layout::{FlowKey, SERVICE_CLIENT_AFFINITY, TABLE_SIZE};

/// Returns the slot of the Maglev table that a connection belongs to.
pub fn flow_slot(flow: &FlowKey, has_client_affinity: bool) -> usize {
    let hash = if has_client_affinity {
        mix_words(SERVICE_CLIENT_AFFINITY.into(), &flow.source.0)
    } else {
        let [high, low] = [flow.source_port.0, flow.target_port.0];
        let tail = [high[0], high[1], low[0], low[1], flow.protocol, 0, 0, 0];
        let bytes = [flow.source.0.as_slice(), &flow.target.0, &tail].concat();
        mix_words(0, &bytes)
    };
    hash as usize % TABLE_SIZE
}

fn mix_words(seed: u64, bytes: &[u8]) -> u32 {
    let mut hash = seed;
    for word in bytes.as_chunks().0 {
        hash = (hash ^ u64::from(u32::from_ne_bytes(*word))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (hash >> 32) as u32
}
