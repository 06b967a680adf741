//! CORS filter (Fetch standard, CORS protocol): the route's policy decides, not the endpoint.

use codec::head::{FieldSection, RequestHead, RequestMethod, ResponseHead};
use gateway::snapshot::{AllowList, CorsPolicy};

/// True if the request is a CORS preflight. The caller has checked that it has an `Origin`.
pub(super) fn is_preflight(request: &RequestHead) -> bool {
    request.method == RequestMethod::Options && request.fields.get(REQUEST_METHOD).is_some()
}

const REQUEST_METHOD: &str = "access-control-request-method";
const REQUEST_HEADERS: &str = "access-control-request-headers";

/// Answers a preflight with the permitted methods and headers; an origin that is not allowed gets
/// none.
pub(super) fn answer_preflight(
    cors: &CorsPolicy,
    origin: &[u8],
    request: &RequestHead,
    response: &mut ResponseHead,
) {
    response.status = 204;
    let fields = &mut response.fields;
    if echoes_origin(cors) {
        fields.append(
            "Vary",
            "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        );
    }
    if !cors.allows(origin) {
        return;
    }
    add_origin(cors, origin, fields);
    for (name, allowed, asked) in [
        ("Access-Control-Allow-Methods", &cors.methods, REQUEST_METHOD),
        ("Access-Control-Allow-Headers", &cors.headers, REQUEST_HEADERS),
    ] {
        let asked = request.fields.get(asked).unwrap_or_default();
        let value = match allowed {
            AllowList::Only(these) => these.as_bytes(),
            // With credentials, `*` is a literal name, not a wildcard.
            AllowList::Any if cors.credentials => asked,
            AllowList::Any => b"*",
        };
        if !value.is_empty() {
            fields.append(name, value);
        }
    }
    fields.append("Access-Control-Max-Age", cors.max_age.as_bytes());
}

/// Replaces the endpoint's CORS fields by those that the policy gives `origin`.
pub(super) fn add_cors_fields(
    cors: &CorsPolicy,
    origin: Option<&[u8]>,
    response: &mut ResponseHead,
) {
    let fields = &mut response.fields;
    fields.remove_named(b"access-control-allow-origin");
    fields.remove_named(b"access-control-allow-credentials");
    fields.remove_named(b"access-control-expose-headers");
    if echoes_origin(cors) {
        fields.append("Vary", "Origin");
    }
    let Some(origin) = origin.filter(|origin| cors.allows(origin)) else { return };
    add_origin(cors, origin, fields);
}

/// Adds the allowed origin and the exposed headers. Browsers look for exposed headers in the actual
/// response alone; Gateway API's conformance suite looks for them in the answer to a preflight too.
fn add_origin(cors: &CorsPolicy, origin: &[u8], fields: &mut FieldSection) {
    let value = if echoes_origin(cors) { origin } else { b"*" };
    fields.append("Access-Control-Allow-Origin", value);
    if cors.credentials {
        fields.append("Access-Control-Allow-Credentials", "true");
    }
    if !cors.expose_headers.is_empty() {
        fields.append("Access-Control-Expose-Headers", cors.expose_headers.as_bytes());
    }
}

/// True if the response repeats the origin, so that it is valid for that origin alone; otherwise it
/// says `*`.
fn echoes_origin(cors: &CorsPolicy) -> bool {
    cors.credentials || cors.origins != AllowList::Any
}
