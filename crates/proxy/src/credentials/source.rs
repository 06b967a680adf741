//! The places of a request where a credential may be: a key of a client, or a token.

use std::borrow::Cow;

use codec::head::RequestHead;
use gateway::matching::query_value;
use gateway::snapshot::CredentialSource;

/// Returns the credential that a request has at the first place where it has one, with the position of the place; `None`
/// in place of a credential if it has several there, of which the endpoint might believe another one.
pub(super) fn find<'r>(
    sources: &[CredentialSource],
    request: &'r RequestHead,
) -> Option<(usize, Option<Cow<'r, [u8]>>)> {
    let mut places = sources.iter().enumerate();
    let (place, first, mut found) = places.find_map(|(place, source)| {
        // Another scheme of Authorization is no credential.
        let mut found = values(source, request).filter(|it| !it.is_empty());
        found.next().map(|first| (place, first, found))
    })?;
    let is_single = found.next().is_none();
    Some((place, is_single.then_some(first)))
}

fn values<'r>(
    source: &CredentialSource,
    request: &'r RequestHead,
) -> Box<dyn Iterator<Item = Cow<'r, [u8]>> + 'r> {
    match source {
        CredentialSource::Header(name) => {
            let (name, is_bearer) = (name.clone(), **name == *"authorization");
            let fields = request.fields.iter();
            let named = fields.filter(move |(_, it, _)| it.eq_ignore_ascii_case(name.as_bytes()));
            Box::new(named.map(move |(_, _, value)| {
                Cow::Borrowed(if is_bearer { bearer_token(value) } else { value })
            }))
        }
        CredentialSource::QueryParameter(name) => {
            let name = name.clone();
            let pairs = request.query().split(|byte| *byte == b'&');
            Box::new(pairs.filter_map(move |pair| query_value(pair, name.as_bytes())))
        }
        CredentialSource::Cookie(name) => {
            let name = name.clone();
            let pairs = cookie_lines(request).flat_map(|line| line.split(|byte| *byte == b';'));
            Box::new(pairs.filter_map(move |pair| cookie_value(pair, &name).map(Cow::Borrowed)))
        }
    }
}

/// Returns the token of Authorization; empty, which is no credential, if it has another scheme.
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
    let end = pair.iter().position(|byte| *byte == b'=')?;
    (pair[..end].trim_ascii() == name.as_bytes()).then(|| pair[end + 1..].trim_ascii())
}

/// Removes the credential from what the endpoint gets.
pub(super) fn remove(source: &CredentialSource, request: &mut RequestHead) {
    match source {
        CredentialSource::Header(name) => request.fields.remove_named(name.as_bytes()),
        CredentialSource::QueryParameter(name) => {
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
        CredentialSource::Cookie(name) => {
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
