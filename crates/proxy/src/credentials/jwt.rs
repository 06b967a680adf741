//! Tokens of issuers (JWT, RFC 7519): verifies the token of a request, and writes its claims for the endpoint.
//!
//! A worker verifies signatures itself: one takes less time than many requests do, and a request causes one at most. What
//! is cheap comes first: size, form, issuer, audience, times, algorithm and key. A token that was right is remembered by
//! its SHA-256 until it expires, by each worker for itself. Wrong ones are not: a client would never send the same twice.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_lc_rs::signature::ParsedPublicKey;
use balance::Time;
use codec::head::RequestHead;
use gateway::jwks::{JsonWebKeySet, JwksSubscription, JwtAlgorithm};
use gateway::snapshot::{JwtIssuer, JwtSettings};

use super::source::{find, remove};
use crate::clock;
use crate::failure::Failure;
use crate::mutex::lock;
use crate::observe::SingleWriterCounter;

/// Tokens that were right.
mod cache;
/// Header fields made of claims.
mod claims;
/// Reasons why tokens are refused.
pub(crate) mod fault;
/// Signals that a key set should be fetched again.
pub(crate) mod refresh;
/// Parts of a token.
mod token;

use cache::TokenCache;
use claims::ClaimValues;
use fault::TokenFault;
use refresh::KeySetRefresh;
use token::{ParsedToken, SignedToken};

/// Time between two signals of a worker for the same issuer: a client may send any number of unknown keys.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

/// The issuers of a policy with their keys.
pub(crate) struct JwtVerifier {
    pub(crate) settings: Arc<JwtSettings>,
    /// In the order of the settings.
    issuers: Box<[IssuerKeys]>,
    /// One per worker, which alone locks it.
    caches: Box<[Mutex<TokenCache>]>,
    /// One per worker.
    pub(crate) counters: Arc<[JwtCounters]>,
}

/// Tokens of one worker.
#[derive(Default)]
pub(crate) struct JwtCounters {
    /// Tokens that were right and remembered.
    remembered: SingleWriterCounter,
    /// Tokens whose signature was verified, and right.
    verified: SingleWriterCounter,
    /// Requests without a token.
    missing: SingleWriterCounter,
    /// Tokens that were refused, by reason.
    refused: [SingleWriterCounter; TokenFault::ALL.len()],
}

impl JwtCounters {
    /// Calls `each` with every outcome and its count.
    pub(crate) fn each(shards: &[Self], each: &mut dyn FnMut(&'static str, u64)) {
        let total = |pick: &dyn Fn(&Self) -> &SingleWriterCounter| {
            shards.iter().map(|it| pick(it).value()).sum()
        };
        each("remembered", total(&|it| &it.remembered));
        each("verified", total(&|it| &it.verified));
        each("missing", total(&|it| &it.missing));
        for fault in TokenFault::ALL {
            each(fault.label(), total(&|it| &it.refused[fault as usize]));
        }
    }
}

/// The keys of an issuer.
struct IssuerKeys {
    /// `None`: they could not be fetched.
    keys: Option<Box<[VerificationKey]>>,
    subscription: Option<Arc<JwksSubscription>>,
    /// Time of the last signal to fetch the keys again, in nanoseconds.
    signalled_at: AtomicU64,
}

/// A key, ready for the algorithms that it is for.
struct VerificationKey {
    id: Option<Box<str>>,
    algorithms: Box<[(JwtAlgorithm, ParsedPublicKey)]>,
}

/// A token that is right.
pub(super) struct VerifiedToken {
    /// Seconds since 1970 within which the token is valid, with the difference between clocks that is tolerated.
    valid_from: f64,
    valid_until: f64,
    /// Header fields for the endpoint.
    fields: ClaimValues,
    issuer: usize,
}

impl VerifiedToken {
    fn check_times(&self, now: f64) -> Result<(), TokenFault> {
        if now >= self.valid_until {
            return Err(TokenFault::Expired);
        }
        if now < self.valid_from {
            return Err(TokenFault::NotYetValid);
        }
        Ok(())
    }
}

impl JwtVerifier {
    /// Returns the verifier of these settings. The counters of `known` stay.
    pub(crate) fn new(settings: &Arc<JwtSettings>, known: Option<&Self>, workers: usize) -> Self {
        let counters = known.map_or_else(
            || (0..workers).map(|_| JwtCounters::default()).collect(),
            |known| Arc::clone(&known.counters),
        );
        Self {
            settings: Arc::clone(settings),
            issuers: settings.issuers.iter().map(IssuerKeys::new).collect(),
            caches: (0..workers).map(|_| Mutex::default()).collect(),
            counters,
        }
    }

    /// Verifies the token of a request, and changes what the endpoint gets of it.
    pub(super) fn check(
        &self,
        request: &mut RequestHead,
        worker: usize,
        refresh: &KeySetRefresh,
        now: Time,
    ) -> Result<(), Failure> {
        let counters = &self.counters[worker];
        let settings = &*self.settings;
        let (place, verdict) = {
            let Some((place, token)) = find(&settings.sources, request) else {
                counters.missing.add(1);
                return Err(Failure::Unauthenticated);
            };
            let token = token.ok_or(TokenFault::Several);
            let verify =
                |token: Cow<'_, [u8]>| self.verify(&token, worker, wall_seconds(), refresh, now);
            (place, token.and_then(verify))
        };
        let verified = verdict.map_err(|fault| {
            counters.refused[fault as usize].add(1);
            Failure::InvalidToken(fault)
        })?;
        // A token that was not verified must not be taken for one that was.
        for (number, source) in settings.sources.iter().enumerate() {
            if !settings.forwards_token || number != place {
                remove(source, request);
            }
        }
        for name in &settings.claim_fields {
            request.fields.remove_spellings(name.as_bytes());
        }
        let claims = &settings.issuers[verified.issuer].claims;
        for (claim, value) in &verified.fields {
            request.fields.append(&*claims[*claim].field, &**value);
        }
        Ok(())
    }

    fn verify(
        &self,
        token: &[u8],
        worker: usize,
        now: f64,
        refresh: &KeySetRefresh,
        instant: Time,
    ) -> Result<Arc<VerifiedToken>, TokenFault> {
        if token.len() > token::MAX_TOKEN {
            return Err(TokenFault::TooLong);
        }
        let key = cache::key(token);
        let remembered = lock(&self.caches[worker]).get(&key);
        if let Some(verified) = remembered {
            verified.check_times(now)?;
            self.counters[worker].remembered.add(1);
            return Ok(verified);
        }
        let signed = SignedToken::split(token)?;
        let parsed = signed.parse()?;
        let verified = Arc::new(self.verify_parsed(&signed, &parsed, now, refresh, instant)?);
        self.counters[worker].verified.add(1);
        lock(&self.caches[worker]).insert(key, &verified);
        Ok(verified)
    }

    fn verify_parsed(
        &self,
        signed: &SignedToken<'_>,
        parsed: &ParsedToken,
        now: f64,
        refresh: &KeySetRefresh,
        instant: Time,
    ) -> Result<VerifiedToken, TokenFault> {
        let mut issuers = self.settings.issuers.iter();
        let issuer = issuers.position(|it| parsed.issuer.as_deref() == Some(&*it.name));
        let issuer = issuer.ok_or(TokenFault::Issuer)?;
        let (settings, keys) = (&self.settings.issuers[issuer], &self.issuers[issuer]);
        if !settings.audiences.is_empty()
            && !settings.audiences.iter().any(|it| parsed.audiences.iter().any(|of| **of == **it))
        {
            return Err(TokenFault::Audience);
        }
        let skew = settings.clock_skew.as_secs_f64();
        let expiry = parsed.expiry.ok_or(TokenFault::NoExpiry)?;
        let mut verified = VerifiedToken {
            valid_from: parsed.not_before.map_or(f64::MIN, |it| it - skew),
            valid_until: expiry + skew,
            fields: Box::default(),
            issuer,
        };
        verified.check_times(now)?;
        let key = keys.find(parsed).inspect_err(|_| keys.ask_for_refresh(refresh, instant))?;
        let is_right = key.verify_sig(signed.signed_part, &signed.signature).is_ok();
        if !is_right {
            return Err(TokenFault::Signature);
        }
        if !settings.claims.is_empty() {
            verified.fields = claims::fields(&settings.claims, &signed.claims)?;
        }
        Ok(verified)
    }

    /// Returns the policy, as a label of metrics.
    pub(crate) fn label(&self) -> [String; 1] {
        [self.settings.policy.to_string()]
    }
}

impl IssuerKeys {
    fn new(issuer: &JwtIssuer) -> Self {
        let prepared = |set: &Arc<JsonWebKeySet>| {
            let keys = set.keys.iter().map(|key| {
                let algorithms = JwtAlgorithm::ALL.into_iter().filter(|it| key.is_for(*it));
                let algorithms = algorithms.filter_map(|it| Some((it, key.key.prepare(it)?)));
                VerificationKey { id: key.id.clone(), algorithms: algorithms.collect() }
            });
            keys.collect()
        };
        Self {
            keys: issuer.keys.as_ref().map(prepared),
            subscription: issuer.subscription.clone(),
            signalled_at: AtomicU64::new(0),
        }
    }

    /// Returns the key of a token. The key decides about the algorithm, not the token: an RSA key is never the secret of
    /// an HMAC.
    fn find(&self, token: &ParsedToken) -> Result<&ParsedPublicKey, TokenFault> {
        let keys = self.keys.as_deref().ok_or(TokenFault::KeysUnavailable)?;
        let id = token.key_id.as_deref();
        let is_meant = |key: &&VerificationKey| id.is_none() || key.id.as_deref() == id;
        let of_algorithm = |key: &'_ VerificationKey| {
            key.algorithms.iter().position(|(it, _)| *it == token.algorithm)
        };
        let mut found = keys
            .iter()
            .filter(is_meant)
            .filter_map(|key| Some(&key.algorithms[of_algorithm(key)?].1));
        let key = found.next().ok_or(TokenFault::UnknownKey)?;
        if found.next().is_some() {
            return Err(TokenFault::AmbiguousKey);
        }
        Ok(key)
    }

    /// Signals that the keys are to be fetched again, because the issuer may have a new one.
    fn ask_for_refresh(&self, refresh: &KeySetRefresh, now: Time) {
        let Some(subscription) = &self.subscription else { return };
        let last = self.signalled_at.load(Ordering::Relaxed);
        let pause = REFRESH_PAUSE.as_nanos() as u64;
        if last == 0 || now.as_nanos() >= last.saturating_add(pause) {
            self.signalled_at.store(now.as_nanos(), Ordering::Relaxed);
            refresh.ask(subscription);
        }
    }
}

/// Returns the seconds since 1970.
fn wall_seconds() -> f64 {
    let since = clock::wall().duration_since(SystemTime::UNIX_EPOCH);
    // A clock before 1970 is wrong; no token is valid then.
    since.map_or(f64::NEG_INFINITY, |it| it.as_secs_f64())
}

#[cfg(test)]
mod tests;
