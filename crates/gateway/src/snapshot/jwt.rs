//! Tokens of issuers, as the data plane verifies them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::api_keys::CredentialSource;
use crate::jwks::{JsonWebKeySet, JwksSubscription};

/// Tokens with which requests may be sent.
#[derive(Clone, PartialEq, Eq)]
pub struct JwtSettings {
    /// `namespace/name` of the policy.
    pub policy: Arc<str>,
    /// The issuers, each once. There is at least one.
    pub issuers: Vec<JwtIssuer>,
    /// The places of a request where the token may be; the first one that a request has counts. There is at least one.
    pub sources: Vec<CredentialSource>,
    /// The names of the header fields in which endpoints get claims, of all issuers, in lower case, each once.
    pub claim_fields: Vec<Box<str>>,
    /// True if endpoints get the token too.
    pub forwards_token: bool,
}

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtIssuer {
    /// Its name (`iss`).
    pub name: Arc<str>,
    /// The audiences (`aud`) of which a token needs one; empty: any.
    pub audiences: Vec<Box<str>>,
    /// The keys; `None`: they could not be fetched, and no token of the issuer is accepted.
    pub keys: Option<Arc<JsonWebKeySet>>,
    /// The URL of the keys, if they are fetched.
    pub subscription: Option<Arc<JwksSubscription>>,
    /// Difference between clocks that is tolerated.
    pub clock_skew: Duration,
    /// Claims that endpoints get.
    pub claims: Vec<ClaimField>,
}

/// A claim that endpoints get in a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimField {
    /// The name of the claim, perhaps a path into objects.
    pub claim: Box<str>,
    /// The name of the field, in lower case.
    pub field: Box<str>,
}

impl fmt::Debug for JwtSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy: _, issuers, sources, claim_fields: _, forwards_token } = self;
        let removed = if *forwards_token { "" } else { ", removed" };
        write!(f, "tokens in {sources:?}{removed}")?;
        for JwtIssuer { name, audiences, keys, subscription, clock_skew, claims } in issuers {
            let keys = keys.as_ref().map_or(0, |it| it.keys.len());
            write!(f, ", of {name} for {audiences:?} with {keys} keys")?;
            if let Some(it) = subscription {
                let (url, interval, max_age) = (&it.url.text, it.refresh_interval, it.max_age);
                write!(f, " of {url} each {interval:?} for {max_age:?}")?;
            }
            write!(f, ", skew {clock_skew:?}")?;
            for ClaimField { claim, field } in claims {
                write!(f, ", {claim} in {field}")?;
            }
        }
        Ok(())
    }
}
