//! The question to an authorizer: a head that is written from that of the client's request.

use balance::Rng;
use codec::h1::write::is_sent_on;
use codec::head::{BodyFraming, KnownFieldName, RequestHead, list};
use gateway::snapshot::{
    AuthorizerTarget, ClientSettings, HttpQuestion, OriginalRequest, UrlScheme,
};

use super::QuestionSource;
use crate::dial::query::{CONDITIONS, FORWARDING, QueryRequest};
use crate::forwarded::{self, RequestOrigin};

/// Fields that describe the client's request to the authorizer, in addition to those of every forwarded request.
const DESCRIPTIONS: [&str; 7] = [
    "X-Original-URL",
    "X-Original-URI",
    "X-Original-Method",
    "X-Forwarded-Method",
    "X-Forwarded-Uri",
    "X-Auth-Request-Redirect",
    "X-Sent-From",
];

/// Fields of an answer that describe the answer itself.
const OF_ANSWER: [&str; 10] = [
    "accept-ranges",
    "age",
    "cache-control",
    "date",
    "etag",
    "expires",
    "last-modified",
    "server",
    "set-cookie",
    "vary",
];

/// True if a field describes the answer itself, so that it would be wrong in the client's request.
pub(super) fn describes_answer(name: &[u8]) -> bool {
    let start = name.get(.."content-".len());
    start.is_some_and(|it| it.eq_ignore_ascii_case(b"content-"))
        || OF_ANSWER.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
        || matches!(
            KnownFieldName::recognise(name),
            KnownFieldName::Via | KnownFieldName::AltSvc | KnownFieldName::ProxyStatus
        )
}

/// Writes the question; `None`: it is no valid request. The client's request gets its ID now, so that both have the same.
pub(super) fn write(
    source: &QuestionSource<'_>,
    http: &HttpQuestion,
    service: &str,
    request: &mut RequestHead,
    rng: &mut Rng,
) -> Option<QueryRequest> {
    let QuestionSource { client, client_settings, .. } = source;
    if http.describes_request && !client_settings.forwards_unchanged {
        forwarded::ensure_request_id(request, rng);
    }
    let text = write_question(source, http, service, request);
    // GEP-1494 demands a Content-Length for a question with the method of the client's request.
    let framing = match http.method {
        Some(_) => BodyFraming::None,
        None => BodyFraming::Length(0),
    };
    let mut question = QueryRequest::parse(&text, framing)?;
    if http.describes_request {
        let origin = &client.origin;
        forwarded::add_forwarding_fields(&mut question.head, origin, client_settings, rng);
    }
    Some(match source.body {
        Some(body) => question.with_body(body.to_vec()),
        None => question,
    })
}

/// Returns the parts of the client's request that URLs may have.
pub(super) fn original<'r>(
    request: &'r RequestHead,
    origin: &RequestOrigin,
    client: &ClientSettings,
) -> OriginalRequest<'r> {
    let named = || request.fields.values(KnownFieldName::XForwardedProto).flat_map(list).next();
    let scheme = match origin.is_trusted(client).then(named).flatten() {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"https") => UrlScheme::Https,
        Some(scheme) if scheme.eq_ignore_ascii_case(b"http") => UrlScheme::Http,
        Some(_) | None => origin.scheme,
    };
    // Without an API key that is for the gateway alone.
    let target = request.sent_target();
    OriginalRequest {
        scheme,
        host: request.host(),
        authority: request.authority(),
        // `*` denotes the whole server and has no path.
        target: if target.starts_with(b"/") { target } else { b"/" },
    }
}

fn write_question(
    source: &QuestionSource<'_>,
    http: &HttpQuestion,
    service: &str,
    request: &RequestHead,
) -> Vec<u8> {
    let QuestionSource { settings, client_settings: client, .. } = source;
    let original = original(request, &source.client.origin, client);
    let method = request.method_bytes();
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(http.method.map_or(method, str::as_bytes));
    out.push(b' ');
    match &http.target {
        AuthorizerTarget::Template(template) => template.write(&original, &mut out),
        AuthorizerTarget::Prefix(prefix) => {
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(original.target);
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let mut add = |name: &[u8], value: &[&[u8]]| {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        value.iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(b"\r\n");
    };
    let host = http.host.as_deref().map_or(original.authority, str::as_bytes);
    add(b"Host", &[if host.is_empty() { service.as_bytes() } else { host }]);
    let is_any = |names: &[&str], name: &[u8]| {
        names.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
    };
    let describes = http.describes_request;
    for (known, name, value) in request.fields.iter() {
        let is_copied = if FORWARDING.contains(&known) {
            describes && !client.forwards_unchanged
        } else {
            is_sent_on(known, BodyFraming::None)
                && settings.request_fields.contains(name)
                && !is_any(&CONDITIONS, name)
                && !(describes && is_any(&DESCRIPTIONS, name))
        };
        if is_copied {
            add(name, &[value]);
        }
    }
    if describes {
        let OriginalRequest { scheme, authority, target, .. } = original;
        if client.forwards_unchanged || !request.fields.has(KnownFieldName::XForwardedHost) {
            add(b"X-Forwarded-Host", &[authority]);
        }
        add(b"X-Original-URL", &[scheme.text().as_bytes(), b"://", authority, target]);
        add(b"X-Original-Method", &[method]);
        for name in ["X-Original-URI", "X-Forwarded-Uri", "X-Auth-Request-Redirect"] {
            add(name.as_bytes(), &[target]);
        }
        add(b"X-Forwarded-Method", &[method]);
    }
    out.extend_from_slice(b"\r\n");
    out
}
