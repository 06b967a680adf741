//! Room in the maps of the kernel.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use l4::{MAX_ENDPOINTS, MAX_SERVICES, MAX_SOURCE_RANGES};

use super::PlannedPort;

/// Room in the maps that Services take. Older ones come first, so that a new one never keeps out what is served.
#[derive(Default)]
pub(super) struct MapRoom {
    ports: usize,
    source_ranges: usize,
    endpoints: BTreeSet<SocketAddr>,
}

impl MapRoom {
    /// Takes the room for all ports of a Service.
    ///
    /// # Errors
    /// The reason, if there is too little; then nothing is taken.
    pub(super) fn take(&mut self, ports: &[PlannedPort]) -> Result<(), String> {
        let ranges = ports.iter().filter_map(|it| it.source_ranges.as_ref());
        let addresses = ports.iter().flat_map(|it| &it.endpoints).map(|it| it.address);
        let new: BTreeSet<_> = addresses.filter(|it| !self.endpoints.contains(it)).collect();
        let port_count = self.ports + ports.len();
        let range_count = self.source_ranges + ranges.map(Vec::len).sum::<usize>();
        let counts = [
            (port_count, MAX_SERVICES, "ports"),
            (range_count, MAX_SOURCE_RANGES, "source ranges"),
            (self.endpoints.len() + new.len(), MAX_ENDPOINTS, "endpoints"),
        ];
        if let Some((_, limit, what)) =
            counts.iter().find(|(count, limit, _)| *count > *limit as usize)
        {
            return Err(format!("all Services together have more than {limit} {what}"));
        }
        (self.ports, self.source_ranges) = (port_count, range_count);
        self.endpoints.extend(new);
        Ok(())
    }
}
