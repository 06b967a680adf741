//! PROXY protocol headers that are sent to endpoints, in the version that the backend's policy names.

use codec::proxy_protocol::{self, ProxyHeader};
use gateway::snapshot::ProxyVersion;

/// Appends the header to `out`, in the given version.
pub(crate) fn write(version: ProxyVersion, header: &ProxyHeader, out: &mut Vec<u8>) {
    match version {
        ProxyVersion::V1 => proxy_protocol::write_v1(header, out),
        ProxyVersion::V2 => proxy_protocol::write_v2(header, out),
    }
}
