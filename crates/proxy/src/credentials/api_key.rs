//! Keys of clients: finds the key of a request, and its client by a keyed hash of the key.
//!
//! Without the key of the hash, no guess can be chosen whose hash is close to that of a key: the time of a look-up
//! tells nothing about keys.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::rand;
use codec::head::RequestHead;
use gateway::matching::query_value;
use gateway::snapshot::{ApiKeySettings, ApiKeySource};

use crate::failure::Failure;

/// The clients of a policy by their keys.
pub(crate) struct ApiKeyTable {
    pub(crate) settings: Arc<ApiKeySettings>,
    key: hmac::Key,
    clients: HashMap<[u8; 32], Arc<str>>,
}

impl ApiKeyTable {
    pub(crate) fn new(settings: &Arc<ApiKeySettings>) -> Self {
        let mut key = [0; 32];
        rand::fill(&mut key).expect("the system has random numbers");
        let key = hmac::Key::new(HMAC_SHA256, &key);
        let clients = settings.clients.iter();
        let clients = clients.map(|(secret, id)| (keyed_hash(&key, &secret.0), Arc::clone(id)));
        let clients = clients.collect();
        Self { settings: Arc::clone(settings), key, clients }
    }

    /// Checks the key of a request, and changes what the endpoint gets of it.
    pub(super) fn check(&self, request: &mut RequestHead) -> Result<(), Failure> {
        let sources = &self.settings.sources;
        let key = sources.iter().find_map(|source| find(source, request)).flatten();
        let client = key.and_then(|key| self.clients.get(&keyed_hash(&self.key, &key)));
        let client = Arc::clone(client.ok_or(Failure::Unauthenticated)?);
        if self.settings.removes_key {
            sources.iter().for_each(|source| remove(source, request));
        }
        if let Some(name) = &self.settings.client_header {
            request.fields.remove_named(name.as_bytes());
            request.fields.append(&**name, &*client);
        }
        Ok(())
    }
}

fn keyed_hash(key: &hmac::Key, text: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(hmac::sign(key, text).as_ref());
    hash
}

/// Returns the challenge of a policy (RFC 9110 §11.6.1). Keys outside of Authorization have no registered scheme.
pub(super) fn challenge(settings: &ApiKeySettings) -> &'static str {
    let is_bearer = |source: &ApiKeySource| *source == ApiKeySource::Header("authorization".into());
    if settings.sources.iter().any(is_bearer) { "Bearer" } else { "ApiKey" }
}

/// Returns the key that a request has at a place; `Some(None)` if it has several there, of which the endpoint might
/// believe another one.
fn find<'r>(source: &ApiKeySource, request: &'r RequestHead) -> Option<Option<Cow<'r, [u8]>>> {
    let mut found = values(source, request);
    let first = found.next()?;
    let is_single = found.next().is_none();
    Some(is_single.then_some(first))
}

fn values<'r>(
    source: &ApiKeySource,
    request: &'r RequestHead,
) -> Box<dyn Iterator<Item = Cow<'r, [u8]>> + 'r> {
    match source {
        ApiKeySource::Header(name) => {
            let (name, is_bearer) = (name.clone(), **name == *"authorization");
            let fields = request.fields.iter();
            let named = fields.filter(move |(_, it, _)| it.eq_ignore_ascii_case(name.as_bytes()));
            Box::new(named.map(move |(_, _, value)| {
                Cow::Borrowed(if is_bearer { bearer_token(value) } else { value })
            }))
        }
        ApiKeySource::QueryParameter(name) => {
            let name = name.clone();
            let pairs = request.query().split(|byte| *byte == b'&');
            Box::new(pairs.filter_map(move |pair| query_value(pair, name.as_bytes())))
        }
        ApiKeySource::Cookie(name) => {
            let name = name.clone();
            let pairs = cookie_lines(request).flat_map(|line| line.split(|byte| *byte == b';'));
            Box::new(pairs.filter_map(move |pair| cookie_value(pair, &name).map(Cow::Borrowed)))
        }
    }
}

/// Returns the token of Authorization; empty, which is no key, if it has another scheme.
fn bearer_token(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        Some(_) | None => b"",
    }
}

fn cookie_lines(request: &RequestHead) -> impl Iterator<Item = &[u8]> {
    let fields = request.fields.iter();
    fields.filter(|(_, name, _)| name.eq_ignore_ascii_case(b"cookie")).map(|(_, _, value)| value)
}

/// Returns the value of a pair `name=value` of a Cookie field, if it has this name.
fn cookie_value<'p>(pair: &'p [u8], name: &str) -> Option<&'p [u8]> {
    pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Removes the key from what the endpoint gets.
fn remove(source: &ApiKeySource, request: &mut RequestHead) {
    match source {
        ApiKeySource::Header(name) => request.fields.remove_named(name.as_bytes()),
        ApiKeySource::QueryParameter(name) => {
            let target = request.sent_target();
            let Some(end) = target.iter().position(|byte| *byte == b'?') else { return };
            let (path, query) = (&target[..end], &target[end + 1..]);
            let pairs = query.split(|byte| *byte == b'&');
            let kept: Vec<_> =
                pairs.filter(|pair| query_value(pair, name.as_bytes()).is_none()).collect();
            let query = kept.join(&b'&');
            let mark: &[u8] = if query.is_empty() { b"" } else { b"?" };
            request.set_sent_target(&[path, mark, &query].concat());
        }
        ApiKeySource::Cookie(name) => {
            let is_kept = |pair: &&[u8]| cookie_value(pair, name).is_none();
            let pairs = cookie_lines(request).flat_map(|line| line.split(|byte| *byte == b';'));
            let kept: Vec<_> = pairs.filter(is_kept).map(<[u8]>::trim_ascii).collect();
            let kept = kept.join(&b"; "[..]);
            request.fields.remove_named(b"cookie");
            if !kept.is_empty() {
                request.fields.append("cookie", kept);
            }
        }
    }
}
