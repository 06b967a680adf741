//! Envoy's protocol for external authorization (`envoy.service.auth.v3.Authorization`): the question about a request, and
//! the answer.
//!
//! An answer becomes changes that are valid in a head: a name or a value that could end a field is an error of the whole
//! answer. A server with the generated code of the protocol shows that the encoding is right
//! (tests/conformance/authorizer).

use std::net::SocketAddr;

use prost::Message;

use crate::h1::syntax::is_token;
use crate::head::{
    BodyFraming, FieldSection, HttpVersion, KnownFieldName, RequestHead, ResponseHead,
};

/// The messages.
mod message;

use message::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValueOption,
    HttpAttributes, OkHttpResponse, RequestAttributes, SocketAddress, SocketPeer, TlsSession,
};

/// The path of the call.
pub const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// Maximum number of changes in one answer: each is looked up in the head.
const MAX_CHANGES: usize = 512;

/// A request that an authorizer is asked about.
pub struct DescribedRequest<'a> {
    pub head: &'a RequestHead,
    pub source: SocketAddr,
    pub destination: Option<SocketAddr>,
    /// The server name of the TLS connection.
    pub server_name: Option<&'a [u8]>,
    pub scheme: &'a str,
    /// True if the fields begin with those that HTTP/2 has in place of a request line, as Envoy writes them.
    pub has_pseudo_fields: bool,
    /// The whole body; `None`: the authorizer does not get it.
    pub body: Option<&'a [u8]>,
}

/// The answer of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationAnswer {
    Allowed(AllowedChanges),
    Denied(DeniedResponse),
}

/// Changes of a request that is allowed, and of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedChanges {
    pub request_fields: Vec<FieldChange>,
    pub removed_fields: Vec<String>,
    pub response_fields: Vec<FieldChange>,
    pub query: QueryChanges,
}

/// Changes of the query of a request. Names and values are not escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryChanges {
    pub set: Vec<(String, String)>,
    pub removed: Vec<String>,
}

/// The response to a request that is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedResponse {
    pub status: u16,
    pub fields: Vec<FieldChange>,
    pub body: Vec<u8>,
}

/// A change of a field. Its name and value are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    pub name: String,
    pub value: Vec<u8>,
    pub action: FieldAction,
}

/// Ways to change a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldAction {
    /// Adds the value to those that are there.
    Append,
    /// Adds the field if there is none of this name.
    AddIfAbsent,
    /// Replaces all fields of this name, or adds one.
    Overwrite,
    /// Replaces all fields of this name, if there is one.
    OverwriteIfPresent,
}

impl FieldChange {
    /// Changes the fields of a head. A field is replaced in all its spellings, because applications may read one as the
    /// other.
    pub fn apply(&self, fields: &mut FieldSection) {
        let is_present = || fields.get(&self.name).is_some();
        match self.action {
            FieldAction::Append => {}
            FieldAction::AddIfAbsent if is_present() => return,
            FieldAction::OverwriteIfPresent if !is_present() => return,
            FieldAction::AddIfAbsent | FieldAction::Overwrite | FieldAction::OverwriteIfPresent => {
                fields.remove_spellings(self.name.as_bytes())
            }
        }
        fields.append(&self.name, &self.value);
    }
}

impl DeniedResponse {
    /// The response if the authorizer gives none.
    pub const FORBIDDEN: Self = Self { status: 403, fields: Vec::new(), body: Vec::new() };

    /// Writes status and fields into the head of a response, in place of what is there. `may_change` is true for the
    /// names of fields that do not belong to the connection.
    pub fn write(&self, response: &mut ResponseHead, may_change: impl Fn(&[u8]) -> bool) {
        response.clear();
        response.status = self.status;
        let changes = self.fields.iter().filter(|it| may_change(it.name.as_bytes()));
        changes.for_each(|change| change.apply(&mut response.fields));
    }
}

/// Returns the question about a request, as a message. The authorizer gets the fields for whose names `is_selected` is
/// true.
pub fn check_request(
    request: &DescribedRequest<'_>,
    is_selected: impl Fn(KnownFieldName, &[u8]) -> bool,
) -> Vec<u8> {
    let DescribedRequest { head, body, .. } = *request;
    let mut http = HttpAttributes {
        id: text(head.fields.first(KnownFieldName::XRequestId).unwrap_or_default()),
        method: text(head.method_bytes()),
        path: text(head.sent_target()),
        host: text(head.authority()),
        scheme: request.scheme.to_owned(),
        size: size(head, body),
        protocol: protocol(head.version).to_owned(),
        ..HttpAttributes::default()
    };
    if request.has_pseudo_fields {
        for (name, value) in [
            (":authority", &http.host),
            (":method", &http.method),
            (":path", &http.path),
            (":scheme", &http.scheme),
        ] {
            http.headers.insert(name.to_owned(), value.clone());
        }
    }
    for (_, name, value) in head.fields.iter().filter(|it| is_selected(it.0, it.1)) {
        let name = text(name).to_ascii_lowercase();
        // RFC 9113 §8.2.3.
        let separator = if name == "cookie" { "; " } else { "," };
        let values = http.headers.entry(name).or_default();
        if !values.is_empty() {
            values.push_str(separator);
        }
        values.push_str(&text(value));
    }
    if let Some(body) = body {
        // Never empty because of bytes that no text has: an authorizer could take that for a request without a body.
        http.body = text(body);
        if str::from_utf8(body).is_err() {
            http.raw_body = body.to_vec();
        }
    }
    let attributes = AttributeContext {
        source: Some(peer(request.source)),
        destination: request.destination.map(peer),
        request: Some(RequestAttributes { http: Some(http) }),
        tls_session: request.server_name.map(|name| TlsSession { sni: text(name) }),
    };
    CheckRequest { attributes: Some(attributes) }.encode_to_vec()
}

/// Parses the one message of an answer, with its frame; `None` if it is malformed, contradicts itself, or says nothing.
pub fn parse_check_response(body: &[u8]) -> Option<AuthorizationAnswer> {
    let (&[compressed, a, b, c, d], message) = body.split_first_chunk()?;
    if compressed != 0 || u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return None;
    }
    let CheckResponse { status, denied_response, ok_response, error_response } =
        CheckResponse::decode(message).ok()?;
    if error_response.is_some() {
        return None;
    }
    let is_ok = status.as_ref().is_none_or(|it| it.code == 0);
    match (denied_response, ok_response) {
        (Some(denied), None) => denied.parsed().map(AuthorizationAnswer::Denied),
        (None, _) if !is_ok => Some(AuthorizationAnswer::Denied(DeniedResponse::FORBIDDEN)),
        (None, Some(allowed)) => allowed.parsed().map(AuthorizationAnswer::Allowed),
        // An empty message is what is left of one that has lost its fields.
        (None, None) => status.map(|_ok| AuthorizationAnswer::Allowed(AllowedChanges::default())),
        (Some(_), Some(_)) => None,
    }
}

/// Returns a text that Protocol Buffers accept.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the size of the body; -1: it is not known.
fn size(head: &RequestHead, body: Option<&[u8]>) -> i64 {
    let length = match (body, head.framing) {
        (Some(body), _) => Some(body.len() as u64),
        (None, BodyFraming::None) => Some(0),
        (None, BodyFraming::Length(length)) => Some(length),
        (None, BodyFraming::Chunked | BodyFraming::Stream | BodyFraming::UntilClose) => None,
    };
    length.and_then(|length| i64::try_from(length).ok()).unwrap_or(-1)
}

const fn protocol(version: HttpVersion) -> &'static str {
    match version {
        HttpVersion::Http10 => "HTTP/1.0",
        HttpVersion::Http11 => "HTTP/1.1",
        HttpVersion::Http2 => "HTTP/2",
        HttpVersion::Http3 => "HTTP/3",
    }
}

fn peer(address: SocketAddr) -> SocketPeer {
    let socket_address = SocketAddress {
        address: address.ip().to_canonical().to_string(),
        port_value: u32::from(address.port()),
    };
    SocketPeer::of(socket_address)
}

impl OkHttpResponse {
    fn parsed(self) -> Option<AllowedChanges> {
        let changes = self.headers.len() + self.headers_to_remove.len();
        let of_query = self.query_parameters_to_set.len() + self.query_parameters_to_remove.len();
        if changes + self.response_headers_to_add.len() + of_query > MAX_CHANGES {
            return None;
        }
        let parameters = self.query_parameters_to_set.into_iter().map(|it| (it.key, it.value));
        Some(AllowedChanges {
            // A field that the authorizer sets is not also what the client wrote, unless it says so.
            request_fields: parsed(self.headers, FieldAction::Overwrite)?,
            removed_fields: self.headers_to_remove,
            response_fields: parsed(self.response_headers_to_add, FieldAction::Append)?,
            query: QueryChanges {
                set: parameters.collect(),
                removed: self.query_parameters_to_remove,
            },
        })
    }
}

impl DeniedHttpResponse {
    fn parsed(self) -> Option<DeniedResponse> {
        let code = self.status.map_or(0, |it| it.code);
        let status = match u16::try_from(code).ok()? {
            0 => 403,
            status @ 200..=599 => status,
            _ => return None,
        };
        if self.headers.len() > MAX_CHANGES {
            return None;
        }
        let has_body = !matches!(status, 204 | 205 | 304);
        let body = if has_body { self.body.into_bytes() } else { Vec::new() };
        Some(DeniedResponse { status, fields: parsed(self.headers, FieldAction::Overwrite)?, body })
    }
}

/// Returns the changes; `None` if a name or a value is not valid. Pseudo-fields are left out: they are no fields.
fn parsed(options: Vec<HeaderValueOption>, otherwise: FieldAction) -> Option<Vec<FieldChange>> {
    let is_field = |it: &HeaderValueOption| {
        it.header.as_ref().is_none_or(|header| !header.key.starts_with(':'))
    };
    options.into_iter().filter(is_field).map(|it| it.parsed(otherwise)).collect()
}

impl HeaderValueOption {
    fn parsed(self, otherwise: FieldAction) -> Option<FieldChange> {
        let header = self.header?;
        let value = match header.value.is_empty() {
            true => header.raw_value,
            false => header.value.into_bytes(),
        };
        if !is_token(header.key.as_bytes()) {
            return None;
        }
        http::HeaderValue::from_bytes(&value).ok()?;
        let action = match (self.append, self.append_action) {
            (Some(append), _) if append.value => FieldAction::Append,
            (Some(_), _) => FieldAction::Overwrite,
            (None, 1) => FieldAction::AddIfAbsent,
            (None, 2) => FieldAction::Overwrite,
            (None, 3) => FieldAction::OverwriteIfPresent,
            (None, 0) => otherwise,
            (None, _) => return None,
        };
        let value = value.trim_ascii().to_vec();
        Some(FieldChange { name: header.key, value, action })
    }
}

#[cfg(test)]
mod tests;
