//! The question to an authorizer that speaks gRPC (Envoy's `ext_authz`), and its answer.

use std::net::SocketAddr;

use balance::Rng;
use codec::grpc::authorization::{
    self, AllowedChanges, AuthorizationAnswer, CHECK_PATH, DeniedResponse, DescribedRequest,
    QueryChanges,
};
use codec::grpc::{GrpcCode, message, timeout};
use codec::h1::write::is_sent_on;
use codec::head::{BodyFraming, RequestHead, ResponseHead};
use gateway::matching::query_value;
use gateway::snapshot::{CookieScope, ExternalAuthSettings, FieldSelection, escape_query};

use super::question::original;
use super::{AuthorizerVerdict, QuestionSource, remove_client_fields};
use crate::dial::query::{QueryAnswer, QueryRequest};
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::filter::authorizer_fields::AuthorizerFields;
use crate::filter::headers;
use crate::forwarded;

/// Writes the question; `None`: it is no valid request. The client's request gets its ID now, so that both have the same.
pub(super) fn write(
    source: &QuestionSource<'_>,
    authority: &str,
    request: &mut RequestHead,
    rng: &mut Rng,
) -> Option<QueryRequest> {
    let QuestionSource { settings, client, client_settings, body } = *source;
    let origin = &client.origin;
    let named = origin.named_client(&request.fields, client_settings);
    let scheme = original(request, origin, client_settings).scheme.text();
    let is_described = !client_settings.forwards_unchanged;
    if is_described {
        forwarded::ensure_request_id(request, rng);
    }
    let mut described = request.clone();
    if is_described {
        forwarded::add_forwarding_fields(&mut described, origin, client_settings, rng);
    }
    let server_name = client.tls_info.as_deref().and_then(|it| it.server_name.as_ref());
    let question = DescribedRequest {
        head: &described,
        // A trusted proxy names no port.
        source: named.map_or(client.peer, |address| SocketAddr::new(address, 0)),
        destination: client.destination(),
        server_name: server_name.map(|it| it.borrowed().as_bytes()),
        scheme,
        has_pseudo_fields: settings.request_fields == FieldSelection::All,
        body,
    };
    let message = authorization::check_request(&question, |known, name| {
        is_sent_on(known, BodyFraming::None) && settings.request_fields.contains(name)
    });
    let timeout = timeout::write(settings.timeout);
    let text = format!(
        "POST {CHECK_PATH} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/grpc\r\n\
         Grpc-Timeout: {timeout}\r\n\r\n"
    );
    let mut question = QueryRequest::parse(text.as_bytes(), BodyFraming::None)?;
    question.head.te_trailers = true;
    Some(question.with_body(message::frame_message(&message).to_vec()))
}

/// Reads the answer, and applies it if the request is allowed.
pub(super) fn verdict(
    settings: &ExternalAuthSettings,
    exchange: &mut Exchange,
    answer: QueryAnswer,
) -> Result<AuthorizerVerdict, Failure> {
    let status = answer.grpc_status().filter(|_| answer.head.status == 200);
    let answer = match status.map(|it| it.code) {
        Some(GrpcCode::Ok) => answer.body.as_deref().and_then(authorization::parse_check_response),
        // Some authorizers deny by the status of the call.
        Some(GrpcCode::PermissionDenied | GrpcCode::Unauthenticated) => {
            Some(AuthorizationAnswer::Denied(DeniedResponse::FORBIDDEN))
        }
        Some(GrpcCode::DeadlineExceeded) => return Err(Failure::AuthorizerTimeout),
        Some(_) | None => None,
    };
    match answer.ok_or(Failure::AuthorizerError)? {
        AuthorizationAnswer::Allowed(changes) => {
            admit(settings, exchange, changes);
            Ok(AuthorizerVerdict::Allowed)
        }
        AuthorizationAnswer::Denied(denied) => {
            let mut head = ResponseHead::new();
            denied.write(&mut head, headers::may_change);
            Ok(AuthorizerVerdict::Denied { head, body: denied.body })
        }
    }
}

/// Applies the changes of a positive answer.
fn admit(settings: &ExternalAuthSettings, exchange: &mut Exchange, changes: AllowedChanges) {
    let AllowedChanges { request_fields, removed_fields, mut response_fields, query } = changes;
    let Exchange { request, filters, .. } = exchange;
    let fields = &mut request.fields;
    remove_client_fields(settings, fields);
    for name in removed_fields.iter().filter(|name| headers::may_change(name.as_bytes())) {
        fields.remove_spellings(name.as_bytes());
    }
    for change in request_fields {
        let name = change.name.as_bytes();
        if settings.response_fields.contains(name) && headers::may_change(name) {
            change.apply(fields);
        }
    }
    if query != QueryChanges::default() && request.sent_target().starts_with(b"/") {
        let target = changed_target(request.sent_target(), &query);
        request.set_sent_target(&target);
    }
    response_fields.retain(|change| headers::may_change(change.name.as_bytes()));
    if let Some(filters) = filters.as_mut().filter(|_| !response_fields.is_empty()) {
        let scope = CookieScope::Always;
        filters.authorizer_fields.push(AuthorizerFields { scope, changes: response_fields });
    }
}

/// Returns the target with another query. A parameter that is set replaces those of its name, however they are escaped.
fn changed_target(target: &[u8], changes: &QueryChanges) -> Vec<u8> {
    let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let query = target.get(end + 1..).unwrap_or_default();
    let names = changes.set.iter().map(|(name, _)| name).chain(&changes.removed);
    let is_kept = |pair: &[u8]| {
        let mut names = names.clone();
        !pair.is_empty() && !names.any(|name| query_value(pair, name.as_bytes()).is_some())
    };
    let kept = query.split(|byte| *byte == b'&').filter(|pair| is_kept(pair)).map(<[u8]>::to_vec);
    let set = changes.set.iter().map(|(name, value)| {
        let mut pair = Vec::new();
        escape_query(name.as_bytes(), &mut pair);
        pair.push(b'=');
        escape_query(value.as_bytes(), &mut pair);
        pair
    });
    let query = kept.chain(set).collect::<Vec<_>>().join(&b'&');
    let mark: &[u8] = if query.is_empty() { b"" } else { b"?" };
    [&target[..end], mark, &query].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_replaced_however_they_are_escaped() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let removed = vec!["debug".to_owned()];
        let changes = QueryChanges { set: vec![pair("user", "a b&c")], removed };
        for (target, changed) in [
            ("/a", "/a?user=a%20b%26c"),
            ("/a?", "/a?user=a%20b%26c"),
            ("/a?user=root&x=1&%75ser=root&debug", "/a?x=1&user=a%20b%26c"),
            ("/a?DEBUG=1&debug=1", "/a?DEBUG=1&user=a%20b%26c"),
        ] {
            let found = changed_target(target.as_bytes(), &changes);
            assert_eq!(String::from_utf8(found).unwrap(), changed, "{target}");
        }
        let changes = QueryChanges { set: Vec::new(), removed: vec!["a".to_owned()] };
        assert_eq!(changed_target(b"/?a=1", &changes), b"/");
    }
}
