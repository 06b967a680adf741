//! One review of the Secret: it issues the certificate of this replica if one is due, and decides what to write. Content
//! and time are arguments.

use std::sync::Arc;

use super::issued::IssuedCertificate;
use super::plan::{AuthorityChange, SecretContent, apply, plan};
use super::{AuthorityPurpose, AuthoritySet, SecretData};

/// State between two reviews.
#[derive(Debug)]
pub(super) struct KeeperState {
    purpose: Arc<AuthorityPurpose>,
    /// Authorities that were used last.
    authorities: Option<AuthoritySet>,
    pub(super) issued: Option<IssuedCertificate>,
    /// Problem of the last review.
    pub(super) problem: Option<String>,
}

/// Result of a review.
#[derive(Debug, Default)]
pub(super) struct KeeperReview {
    /// True if there is another certificate.
    pub(super) is_new: bool,
    /// Change that is due in the Secret, and the authorities after it.
    pub(super) write: Option<(AuthorityChange, AuthoritySet)>,
}

impl KeeperState {
    /// Returns the state before the Secret has been read.
    pub(super) const fn new(purpose: Arc<AuthorityPurpose>) -> Self {
        Self { purpose, authorities: None, issued: None, problem: None }
    }

    /// Reads a Secret.
    pub(super) fn read(&self, secret_type: &str, data: &SecretData) -> SecretContent {
        SecretContent::read(&self.purpose, secret_type, data)
    }

    /// Returns the type of a Secret that is created.
    pub(super) fn secret_type(&self) -> &'static str {
        self.purpose.secret_type
    }

    /// Issues a certificate if one is due, and decides what to write. `None`: the Secret has not been read.
    pub(super) fn review(&mut self, content: Option<&SecretContent>, now: u64) -> KeeperReview {
        let mut review = KeeperReview::default();
        self.problem = None;
        if let Some(content) = content {
            let plan = plan(content, now);
            self.problem = plan.problem.map(|problem| problem.to_string());
            if let Some(usable) = plan.usable
                && self.authorities.as_ref() != Some(usable)
            {
                self.authorities = Some(usable.clone());
            }
            if let Some(change) = plan.change {
                match apply(content, change, &self.purpose, now) {
                    Ok(authorities) => review.write = Some((change, authorities)),
                    Err(error) => self.problem = Some(format!("cannot make an authority: {error}")),
                }
            }
        }
        review.is_new = self.issue_if_due(now);
        review
    }

    /// Issues a certificate from the authorities that were used last, as long as they are valid.
    fn issue_if_due(&mut self, now: u64) -> bool {
        let Some(authorities) = &self.authorities else { return false };
        let is_due = self.issued.as_ref().is_none_or(|issued| issued.is_outdated(authorities, now));
        let validity = &authorities.current.certificate;
        if !is_due || !(validity.not_before..validity.not_after).contains(&now) {
            return false;
        }
        match IssuedCertificate::issue(authorities, now) {
            Ok(issued) => {
                self.issued = Some(issued);
                true
            }
            Err(error) => {
                self.problem = Some(format!("cannot issue a certificate: {error:#}"));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
