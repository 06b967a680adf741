//! The Lease of an address in the API server.

use std::net::IpAddr;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube_client::api::{ObjectMeta, PostParams};
use kube_client::{Api, Error};

use super::ownership::{LEASE_DURATION, LeaseState, LeaseWrite, LeaseWriteOutcome};
use crate::leader_election::renewed_spec;

/// Label of all Leases of addresses.
pub(super) const SELECTOR: &str = "sheave.dev/lease=address";
/// Annotation with the node that is preferred to the holder.
const WANTED_BY: &str = "sheave.dev/wanted-by";

/// Returns the name of the Lease of an address. Object names have no colons and do not end in a
/// dash.
pub(super) fn lease_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(ip) => format!("sheave-address-{ip}"),
        IpAddr::V6(ip) => {
            let groups = ip.segments().map(|group| format!("{group:04x}"));
            format!("sheave-address-{}", groups.join("-"))
        }
    }
}

/// Reads the state of a Lease.
pub(super) fn lease_state(lease: &Lease) -> LeaseState {
    let spec = lease.spec.clone().unwrap_or_default();
    let annotations = lease.metadata.annotations.as_ref();
    LeaseState {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        renewal: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
        wanted_by: annotations.and_then(|all| all.get(WANTED_BY)).cloned(),
    }
}

/// True if a Lease is newer than the known one.
pub(super) fn is_newer(lease: &Lease, known: Option<&Lease>) -> bool {
    let Some(known) = known else { return true };
    // Resource versions of one object are increasing numbers.
    let version = |lease: &Lease| lease.metadata.resource_version.as_deref()?.parse::<u64>().ok();
    lease.metadata.uid != known.metadata.uid || version(lease) > version(known)
}

/// Writes a Lease if it is unchanged since it was read; returns the outcome, and the current Lease if it is known.
pub(super) async fn write_lease(
    api: &Api<Lease>,
    (name, node): (&str, &str),
    known: Option<&Lease>,
    write: &LeaseWrite,
) -> (LeaseWriteOutcome, Option<Option<Lease>>) {
    let lease = updated_lease(name, node, known, write);
    let done = match known {
        None => api.create(&PostParams::default(), &lease).await,
        Some(_) => api.replace(name, &PostParams::default(), &lease).await,
    };
    let outcome = match done {
        Ok(lease) => return (LeaseWriteOutcome::Done, Some(Some(lease))),
        Err(error) => classify_error(&error),
    };
    let now =
        if outcome == LeaseWriteOutcome::Conflict { api.get_opt(name).await.ok() } else { None };
    (outcome, now)
}

fn classify_error(error: &Error) -> LeaseWriteOutcome {
    match error {
        Error::Api(status) if [404, 409].contains(&status.code) => LeaseWriteOutcome::Conflict,
        // Too many requests: a later one may succeed.
        Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
            tracing::warn!(%error, "the API server rejects the Lease of an address");
            LeaseWriteOutcome::Rejected
        }
        _ => LeaseWriteOutcome::Unavailable,
    }
}

fn updated_lease(name: &str, node: &str, known: Option<&Lease>, write: &LeaseWrite) -> Lease {
    let mut lease = known.cloned().unwrap_or_else(|| new_lease(name));
    let spec = lease.spec.take().unwrap_or_default();
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.remove(WANTED_BY);
    let spec = match write {
        LeaseWrite::AcquireOrRenew => renewed_spec(spec, node, LEASE_DURATION),
        LeaseWrite::HandOver(other) => renewed_spec(spec, other, LEASE_DURATION),
        LeaseWrite::Release => LeaseSpec { holder_identity: Some(String::new()), ..spec },
        LeaseWrite::RequestHandover => {
            annotations.insert(WANTED_BY.to_owned(), node.to_owned());
            spec
        }
    };
    lease.spec = Some(spec);
    lease
}

fn new_lease(name: &str) -> Lease {
    let label = SELECTOR.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let labels = Some(label.into_iter().collect());
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels, ..ObjectMeta::default() };
    Lease { metadata, spec: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_names_are_valid_object_names() {
        assert_eq!(lease_name("192.0.2.7".parse().unwrap()), "sheave-address-192.0.2.7");
        assert_eq!(
            lease_name("2001:db8::".parse().unwrap()),
            "sheave-address-2001-0db8-0000-0000-0000-0000-0000-0000"
        );
    }

    #[test]
    fn lease_record_round_trips() {
        let held = updated_lease("a", "n1", None, &LeaseWrite::AcquireOrRenew);
        assert_eq!(lease_state(&held).holder.as_deref(), Some("n1"));
        let wanted = updated_lease("a", "n2", Some(&held), &LeaseWrite::RequestHandover);
        assert_eq!(
            lease_state(&wanted),
            LeaseState { wanted_by: Some("n2".to_owned()), ..lease_state(&held) }
        );
        let handed =
            updated_lease("a", "n1", Some(&wanted), &LeaseWrite::HandOver("n2".to_owned()));
        assert_eq!(
            (lease_state(&handed).holder.as_deref(), lease_state(&handed).wanted_by),
            (Some("n2"), None)
        );
        let left = updated_lease("a", "n2", Some(&handed), &LeaseWrite::Release);
        assert_eq!(lease_state(&left).holder, None);
    }

    #[test]
    fn older_lease_version_is_ignored() {
        let lease = |version: &str| {
            let mut lease = new_lease("a");
            lease.metadata.resource_version = Some(version.to_owned());
            lease
        };
        assert!(is_newer(&lease("9"), None));
        assert!(is_newer(&lease("10"), Some(&lease("9"))));
        assert!(!is_newer(&lease("9"), Some(&lease("10"))));
        assert!(!is_newer(&lease("9"), Some(&lease("9"))));
    }
}
