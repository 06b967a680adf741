//! Last known addresses of a name, per family, and the error of its last lookup.

use std::net::IpAddr;

use super::lookup::{DualStackLookup, FamilyLookup};

/// State of one name.
#[derive(Default)]
pub(super) struct ResolvedName {
    v4: Vec<IpAddr>,
    v6: Vec<IpAddr>,
    was_looked_up: bool,
    /// Error of the last lookup.
    problem: Option<String>,
}

impl ResolvedName {
    /// True until the first lookup has a result.
    pub(super) fn is_pending(&self) -> bool {
        !self.was_looked_up
    }

    pub(super) fn is_failing(&self) -> bool {
        self.problem.is_some()
    }

    /// Returns the addresses, sorted and without duplicates.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses = [&self.v4[..], &self.v6[..]].concat();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Applies the result of a lookup; returns whether the addresses have changed. Logs each change between success and
    /// failure once.
    pub(super) fn update(&mut self, host: &str, lookup: DualStackLookup) -> bool {
        let problem = lookup.problem().map(str::to_owned);
        match &problem {
            Some(reason) if self.problem.as_ref() != Some(reason) => {
                tracing::warn!(
                    name = host,
                    reason,
                    "cannot resolve: keeping the last known addresses"
                );
            }
            None if self.problem.is_some() => tracing::info!(name = host, "resolves again"),
            Some(_) | None => {}
        }
        self.problem = problem;
        self.was_looked_up = true;
        let before = self.addresses();
        let answered =
            [&lookup.v4, &lookup.v6].iter().any(|it| matches!(it, FamilyLookup::Addresses(..)));
        replace(&mut self.v4, lookup.v4, answered);
        replace(&mut self.v6, lookup.v6, answered);
        self.addresses() != before
    }
}

/// Updates one family. A family whose lookup failed keeps its addresses. A family without addresses is cleared only if
/// the other family has some: a name without any address is assumed to be a mistake.
fn replace(known: &mut Vec<IpAddr>, found: FamilyLookup, answered: bool) {
    match found {
        FamilyLookup::Addresses(addresses, _) => *known = addresses,
        FamilyLookup::NoAddress if answered => known.clear(),
        FamilyLookup::NoAddress | FamilyLookup::Failed(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn addresses(addresses: &[&str]) -> FamilyLookup {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        FamilyLookup::Addresses(addresses, Duration::from_secs(1))
    }

    fn failed() -> FamilyLookup {
        FamilyLookup::Failed("no answer".into())
    }

    /// Returns the state after these lookups, and whether the last one changed it.
    fn after(lookups: Vec<(FamilyLookup, FamilyLookup)>) -> (Vec<String>, bool, bool) {
        let mut known = ResolvedName::default();
        let mut changed = false;
        for (v4, v6) in lookups {
            changed = known.update("a.test", DualStackLookup { v4, v6 });
        }
        let addresses = known.addresses().iter().map(ToString::to_string).collect();
        (addresses, changed, known.is_failing())
    }

    fn is(addresses: &[&str], changed: bool, failing: bool) -> (Vec<String>, bool, bool) {
        (addresses.iter().map(ToString::to_string).collect(), changed, failing)
    }

    #[test]
    fn resolved_addresses_include_both_families() {
        let both = || (addresses(&["10.0.0.2", "10.0.0.1"]), addresses(&["2001:db8::1"]));
        let all = ["10.0.0.1", "10.0.0.2", "2001:db8::1"];
        assert_eq!(after(vec![both()]), is(&all, true, false));
        assert_eq!(after(vec![both(), both()]), is(&all, false, false));
        let one = (addresses(&["10.0.0.1"]), FamilyLookup::NoAddress);
        assert_eq!(after(vec![both(), one]), is(&["10.0.0.1"], true, false));
    }

    #[test]
    fn a_failure_keeps_the_last_answer_of_its_family() {
        let first = || (addresses(&["10.0.0.1"]), addresses(&["2001:db8::1"]));
        let all = ["10.0.0.1", "2001:db8::1"];
        assert_eq!(after(vec![first(), (failed(), failed())]), is(&all, false, true));
        assert_eq!(
            after(vec![first(), (FamilyLookup::NoAddress, FamilyLookup::NoAddress)]),
            is(&all, false, true)
        );
        let half = (failed(), addresses(&["2001:db8::2"]));
        assert_eq!(after(vec![first(), half]), is(&["10.0.0.1", "2001:db8::2"], true, true));
        assert_eq!(after(vec![(failed(), failed()), first()]), is(&all, true, false));
    }
}
