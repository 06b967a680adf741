//! Decisions about authorities: which of them are used now, and what has to change in the Secret. All of
//! it follows from the content and the time.
//!
//! An authority issues certificates for `NEXT_AFTER` and `PUBLICATION_TIME`. The next one is published that long
//! before it issues, so that every replica trusts it by then; the previous one is trusted for as long afterwards.

use std::sync::Arc;

use thiserror::Error;

use super::issued::LEAF_LIFETIME;
use super::{
    AuthorityError, AuthorityPurpose, AuthoritySet, CLOCK_SKEW, CertificateAuthority, DAY,
    PreviousAuthority, SecretData,
};

/// Age at which an authority gets a successor: two thirds of its life.
pub(super) const NEXT_AFTER: u64 = 60 * DAY;

/// Time between the publication of an authority and its first certificate, and from its last certificate until it is no
/// longer trusted. A replica may be without the API server for so long.
pub(super) const PUBLICATION_TIME: u64 = 7 * DAY;

/// Content of the Secret.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SecretContent {
    /// There is no Secret.
    Absent,
    /// The Secret has another purpose: its type is not this one.
    Foreign(&'static str),
    /// The Secret has the right type and cannot be used.
    Malformed(AuthorityError),
    /// The authorities.
    Authorities(AuthoritySet),
}

/// Change of the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthorityChange {
    /// Create the Secret with a first authority.
    Create,
    /// Replace all authorities by a new one: they have expired.
    StartOver,
    /// Add the next authority.
    PublishNext,
    /// Let the next authority issue.
    Promote,
    /// Remove the previous authority.
    RemovePrevious,
}

/// Reason why the Secret is not used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum AuthorityProblem {
    #[error("it belongs to something else: its type is not {0}; delete it or name another one")]
    Foreign(&'static str),
    #[error("{0}; delete the Secret, and replicas make new authorities")]
    Malformed(#[from] AuthorityError),
    #[error(
        "the authority is not valid yet: the clock of this replica, or of the one that made it, is wrong"
    )]
    NotYetValid,
    #[error("the authority has expired")]
    Expired,
}

/// Decision that follows from the content of the Secret now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AuthorityPlan<'c> {
    /// Authorities to use. `None`: those used before stay in use.
    pub(super) usable: Option<&'c AuthoritySet>,
    /// Change to write.
    pub(super) change: Option<AuthorityChange>,
    pub(super) problem: Option<AuthorityProblem>,
}

impl SecretContent {
    /// Reads a Secret.
    pub(super) fn read(
        purpose: &Arc<AuthorityPurpose>,
        secret_type: &str,
        data: &SecretData,
    ) -> Self {
        if secret_type != purpose.secret_type {
            return Self::Foreign(purpose.secret_type);
        }
        AuthoritySet::read(purpose, data).map_or_else(Self::Malformed, Self::Authorities)
    }
}

/// Decides what the content of the Secret means now.
pub(super) fn plan(content: &SecretContent, now: u64) -> AuthorityPlan<'_> {
    let unusable = |change, problem| AuthorityPlan { usable: None, change, problem };
    match content {
        SecretContent::Absent => unusable(Some(AuthorityChange::Create), None),
        SecretContent::Foreign(expected) => {
            unusable(None, Some(AuthorityProblem::Foreign(expected)))
        }
        SecretContent::Malformed(error) => unusable(None, Some((*error).into())),
        SecretContent::Authorities(set) if now < set.current.certificate.not_before => {
            // To replace it would set two replicas with different clocks against each other.
            unusable(None, Some(AuthorityProblem::NotYetValid))
        }
        SecretContent::Authorities(set) if now >= set.current.certificate.not_after => {
            let change = match &set.next {
                Some(next) if is_valid(next, now) => AuthorityChange::Promote,
                Some(_) | None => AuthorityChange::StartOver,
            };
            unusable(Some(change), Some(AuthorityProblem::Expired))
        }
        SecretContent::Authorities(set) => {
            AuthorityPlan { usable: Some(set), change: due_change(set, now), problem: None }
        }
    }
}

/// Returns the change that is due while the current authority is valid.
fn due_change(set: &AuthoritySet, now: u64) -> Option<AuthorityChange> {
    let current = &set.current;
    match set.next.as_ref().filter(|next| now < next.certificate.not_after) {
        None if now >= current.made_at() + NEXT_AFTER => Some(AuthorityChange::PublishNext),
        Some(next) if is_valid(next, now) && is_time_to_promote(current, next, now) => {
            Some(AuthorityChange::Promote)
        }
        _ => {
            let is_over = |previous: &PreviousAuthority| {
                now >= previous.until.min(previous.certificate.not_after)
            };
            set.previous.as_ref().is_some_and(is_over).then_some(AuthorityChange::RemovePrevious)
        }
    }
}

fn is_valid(authority: &CertificateAuthority, now: u64) -> bool {
    (authority.certificate.not_before..authority.certificate.not_after).contains(&now)
}

/// True if the next authority has been known for long enough, or the current one is about to expire: all replicas were
/// stopped for a long time.
fn is_time_to_promote(
    current: &CertificateAuthority,
    next: &CertificateAuthority,
    now: u64,
) -> bool {
    let is_known = now >= next.made_at().saturating_add(PUBLICATION_TIME);
    let is_urgent = now.saturating_add(2 * LEAF_LIFETIME) >= current.certificate.not_after
        && now > next.made_at() + CLOCK_SKEW;
    is_known || is_urgent
}

/// Returns the authorities after a change.
///
/// # Errors
/// If a new authority cannot be made.
pub(super) fn apply(
    content: &SecretContent,
    change: AuthorityChange,
    purpose: &Arc<AuthorityPurpose>,
    now: u64,
) -> Result<AuthoritySet, rcgen::Error> {
    let generate = || CertificateAuthority::generate(purpose, now);
    let SecretContent::Authorities(set) = content else {
        return generate().map(AuthoritySet::new);
    };
    let set = set.clone();
    Ok(match (change, set.next) {
        (AuthorityChange::Create | AuthorityChange::StartOver, _) => AuthoritySet::new(generate()?),
        (AuthorityChange::PublishNext, _) => AuthoritySet { next: Some(generate()?), ..set },
        (AuthorityChange::Promote, Some(next)) => {
            let certificate = set.current.certificate;
            let until = now.saturating_add(PUBLICATION_TIME).min(certificate.not_after);
            let previous = (now < until).then_some(PreviousAuthority { certificate, until });
            AuthoritySet { current: next, next: None, previous }
        }
        (AuthorityChange::Promote, None) => AuthoritySet { next: None, ..set },
        (AuthorityChange::RemovePrevious, next) => {
            AuthoritySet { next, previous: None, current: set.current }
        }
    })
}

#[cfg(test)]
mod tests;
