//! The query for an error page: a head that is written from that of the client's request, with fields that describe the
//! error as ingress-nginx does.

use balance::Rng;
use codec::h1::write::is_sent_on;
use codec::head::{BodyFraming, RequestHead};
use gateway::snapshot::{BackendKey, ClientSettings};

use crate::dial::query::{CONDITIONS, FORWARDING, QueryRequest};
use crate::forwarded::{self, RequestOrigin};

/// Fields that describe the error, besides `X-Request-ID`. A client cannot write them.
const DESCRIPTIONS: [&str; 7] = [
    "X-Code",
    "X-Format",
    "X-Original-URI",
    "X-Namespace",
    "X-Ingress-Name",
    "X-Service-Name",
    "X-Service-Port",
];

/// The request that has failed.
pub(super) struct FailedRequest<'a> {
    /// The status of its response.
    pub(super) status: u16,
    /// `namespace/route/rule`.
    pub(super) rule: Option<&'a str>,
    pub(super) backend: Option<&'a BackendKey>,
    /// True if the request has the fields that a proxy adds.
    pub(super) has_forwarding_fields: bool,
    /// True if the query has the path of the request.
    pub(super) keeps_path: bool,
}

/// Writes the query. `None`: the head would not be valid.
pub(super) fn write(
    failed: &FailedRequest<'_>,
    service: &str,
    request: &RequestHead,
    origin: &RequestOrigin,
    client: &ClientSettings,
    rng: &mut Rng,
) -> Option<QueryRequest> {
    let text = write_question(failed, service, request, client);
    let mut question = QueryRequest::parse(&text, BodyFraming::None)?;
    let head = &mut question.head;
    if !failed.has_forwarding_fields && !client.forwards_unchanged {
        forwarded::add_forwarding_fields(head, origin, client, rng);
    }
    forwarded::ensure_request_id(head, rng);
    Some(question)
}

fn write_question(
    failed: &FailedRequest<'_>,
    service: &str,
    request: &RequestHead,
    client: &ClientSettings,
) -> Vec<u8> {
    let target = request.original_target();
    // `*` denotes the whole server and has no path.
    let target = if target.starts_with(b"/") { target } else { b"/" };
    let path = target.split(|byte| *byte == b'?').next().unwrap_or(target);
    // A check of keys may have removed one from the query.
    let sent = request.sent_target();
    let query = sent.iter().position(|byte| *byte == b'?').map_or(&b""[..], |at| &sent[at..]);
    let target = [path, query].concat();
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(b"GET ");
    if failed.keeps_path {
        out.extend_from_slice(&target);
    } else {
        out.push(b'/');
        out.extend_from_slice(query);
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let mut add = |name: &[u8], value: &[u8]| {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    };
    let host = request.authority();
    add(b"Host", if host.is_empty() { service.as_bytes() } else { host });
    let is_any = |names: &[&str], name: &[u8]| {
        names.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
    };
    let of_body = |name: &[u8]| {
        name.get(.."content-".len()).is_some_and(|it| it.eq_ignore_ascii_case(b"content-"))
    };
    for (known, name, value) in request.fields.iter() {
        let is_left_out = FORWARDING.contains(&known) && client.forwards_unchanged
            || is_any(&CONDITIONS, name)
            || is_any(&DESCRIPTIONS, name)
            || of_body(name);
        let is_copied = is_sent_on(known, BodyFraming::None) && !is_left_out;
        if is_copied {
            add(name, value);
        }
    }
    add(b"X-Code", failed.status.to_string().as_bytes());
    add(b"X-Format", request.fields.get("accept").unwrap_or_default());
    add(b"X-Original-URI", &target);
    let mut names = failed.rule.unwrap_or_default().split('/');
    let (namespace, route) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    // The route of an Ingress has its name between colons.
    let ingress = route.strip_prefix("ingress:").and_then(|it| it.split(':').next());
    add(b"X-Namespace", namespace.as_bytes());
    add(b"X-Ingress-Name", ingress.unwrap_or(route).as_bytes());
    if let Some(BackendKey { service, port, .. }) = failed.backend {
        add(b"X-Service-Name", service.as_bytes());
        add(b"X-Service-Port", port.to_string().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}
