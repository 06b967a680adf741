//! Compression of responses: which of them, and what it changes in their heads.
//!
//! This module does not encode: see [`crate::compression`].

use codec::head::{
    BodyFraming, FieldSection, HttpVersion, KnownFieldName, RequestHead, RequestMethod,
    ResponseHead, list,
};
use gateway::snapshot::{CompressionSettings, ContentCoding};

use super::accept_encoding::CodingPreference;

/// Fields of responses that are not encoded: another coding has been applied, a part is sent, or the body's own bytes
/// have been digested.
const OBSTACLES: [&str; 6] =
    ["content-encoding", "content-range", "content-digest", "content-md5", "repr-digest", "digest"];
/// Digests that a trailer may have, after a body that is encoded while it passes.
const DIGESTS: [&[u8]; 3] = [b"content-digest", b"repr-digest", b"digest"];
/// Media types of gRPC, whose messages are compressed one by one.
const GRPC: &[u8] = b"application/grpc";

/// Returns the coding of the response, if it is to be encoded. Adds `Vary` to each response that would be encoded for
/// another client.
pub(super) fn choose(
    settings: &CompressionSettings,
    preference: CodingPreference,
    request: &RequestHead,
    response: &mut ResponseHead,
) -> Option<ContentCoding> {
    if response.status == 304 {
        describe_unchanged(preference, response);
        return None;
    }
    let least = if preference.rejects_identity { 1 } else { settings.min_bytes };
    if !has_body(request, response, least) || !may_encode(settings, request, response) {
        return None;
    }
    add_vary(response);
    preference.coding
}

/// Changes the head of a 304 as that of the 200 would be (RFC 9110 §15.4.5). It has no type to judge by: an entity tag that is
/// weak without need is compared as the client compares it, while a strong one would not match the client's weak one.
fn describe_unchanged(preference: CodingPreference, response: &mut ResponseHead) {
    add_vary(response);
    if preference.coding.is_some() {
        weaken_tag(&mut response.fields);
    }
}

fn add_vary(response: &mut ResponseHead) {
    if !has_element(&response.fields, "vary", &[b"*", b"accept-encoding"]) {
        response.fields.append("Vary", "Accept-Encoding");
    }
}

/// Makes the entity tag weak: the bytes of the encoded body are no part of what it stands for.
fn weaken_tag(fields: &mut FieldSection) {
    let strong = fields.get("etag").filter(|tag| tag.starts_with(b"\""));
    if let Some(weak) = strong.map(|tag| [b"W/", tag].concat()) {
        fields.remove_named(b"etag");
        fields.append("ETag", weak);
    }
}

/// Changes the head of a response whose body is encoded, or would be if the request were not HEAD.
pub(crate) fn describe(coding: ContentCoding, response: &mut ResponseHead) {
    let fields = &mut response.fields;
    weaken_tag(fields);
    // The endpoint counts the bytes of ranges before they are encoded.
    fields.remove_named(b"accept-ranges");
    fields.append("Content-Encoding", coding.token());
    response.length_of_absent_body = None;
}

/// True if the response has a body of at least `least` bytes, or one of unknown length.
fn has_body(request: &RequestHead, response: &ResponseHead, least: u64) -> bool {
    let is_http10 = request.version == HttpVersion::Http10;
    if is_http10 || request.method == RequestMethod::Connect || response.upgrade {
        return false;
    }
    if response.status < 200 || matches!(response.status, 204 | 205 | 206 | 304) {
        return false;
    }
    match response.framing {
        BodyFraming::None if request.method == RequestMethod::Head => {
            response.length_of_absent_body.is_none_or(|length| length >= least.max(1))
        }
        BodyFraming::None => false,
        BodyFraming::Length(length) => length >= least.max(1),
        BodyFraming::Chunked | BodyFraming::UntilClose | BodyFraming::Stream => true,
    }
}

fn may_encode(
    settings: &CompressionSettings,
    request: &RequestHead,
    response: &ResponseHead,
) -> bool {
    let fields = &response.fields;
    let content_type = fields.get("content-type").unwrap_or_default();
    let media_type = content_type.split(|&byte| byte == b';').next().unwrap_or_default();
    let media_type = media_type.trim_ascii().to_ascii_lowercase();
    let no_transform = &[b"no-transform".as_slice()];
    settings.has_type(&media_type)
        && !media_type.starts_with(GRPC)
        && !fields.iter().any(|(known, name, _)| {
            let is = |obstacle: &&str| name.eq_ignore_ascii_case(obstacle.as_bytes());
            known == KnownFieldName::Other && OBSTACLES.iter().any(is)
        })
        && !has_element(fields, "trailer", &DIGESTS)
        && !has_element(fields, "cache-control", no_transform)
        && !has_element(&request.fields, "cache-control", no_transform)
}

/// True if a list of this name has one of these elements, in lower case.
fn has_element(fields: &FieldSection, name: &str, elements: &[&[u8]]) -> bool {
    let named = fields.iter().filter(|(_, it, _)| it.eq_ignore_ascii_case(name.as_bytes()));
    let is_one = |found: &[u8]| elements.iter().any(|it| found.eq_ignore_ascii_case(it));
    named.flat_map(|(.., value)| list(value)).any(is_one)
}

#[cfg(test)]
mod tests {
    use codec::h1::{HeadLimits, parse};

    use super::*;

    /// Status, framing and fields of a response.
    type ResponseCase<'a> = (u16, BodyFraming, &'a [(&'a str, &'a str)]);

    const PREFERENCE: CodingPreference =
        CodingPreference { coding: Some(ContentCoding::Brotli), rejects_identity: false };

    fn settings() -> CompressionSettings {
        CompressionSettings {
            codings: ContentCoding::ALL.to_vec(),
            media_types: vec!["text/".into(), "application/json".into(), "application/".into()],
            min_bytes: 100,
        }
    }

    fn request(head: &str) -> RequestHead {
        let limits = HeadLimits { head_bytes: 4096, fields: 32, target_bytes: 1024 };
        let mut request = RequestHead::new();
        assert_eq!(parse::request(head.as_bytes(), &limits, &mut request), Ok(Some(head.len())));
        request
    }

    fn response(status: u16, framing: BodyFraming, fields: &[(&str, &str)]) -> ResponseHead {
        let mut response = ResponseHead::new();
        (response.status, response.framing) = (status, framing);
        fields.iter().for_each(|(name, value)| response.fields.append(name, value));
        response
    }

    /// Returns the coding and the value of `Vary`.
    fn chosen(
        request: &RequestHead,
        response: &mut ResponseHead,
    ) -> (Option<ContentCoding>, Option<String>) {
        let coding = choose(&settings(), PREFERENCE, request, response);
        let vary = response.fields.get("vary").map(|it| String::from_utf8_lossy(it).into_owned());
        (coding, vary)
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const TEXT: (&str, &str) = ("Content-Type", "Text/Plain; charset=utf-8");

    #[test]
    fn responses_that_must_stay_as_they_are_get_no_coding_and_no_vary() {
        let (get, long) = (request(GET), BodyFraming::Length(100));
        let cases: &[ResponseCase<'_>] = &[
            (200, BodyFraming::Length(99), &[TEXT]),
            (200, BodyFraming::Length(0), &[TEXT]),
            (200, BodyFraming::None, &[TEXT]),
            (204, BodyFraming::None, &[TEXT]),
            (206, long, &[TEXT]),
            (416, long, &[TEXT, ("Content-Range", "bytes */100")]),
            (200, long, &[]),
            (200, long, &[("Content-Type", "image/png")]),
            (200, long, &[("Content-Type", "application/grpc-web+proto")]),
            (200, BodyFraming::Stream, &[("Content-Type", "application/grpc")]),
            (200, long, &[TEXT, ("Content-Encoding", "gzip")]),
            (200, long, &[TEXT, ("content-encoding", "identity")]),
            (200, long, &[TEXT, ("Cache-Control", "public, No-Transform")]),
            (200, long, &[TEXT, ("Content-Digest", "sha-256=:x:")]),
            (200, long, &[TEXT, ("Repr-Digest", "sha-256=:x:")]),
            (200, long, &[TEXT, ("Content-MD5", "x==")]),
            (200, BodyFraming::Chunked, &[TEXT, ("Trailer", "X-A, Digest")]),
        ];
        for (status, framing, fields) in cases {
            let mut response = response(*status, *framing, fields);
            assert_eq!(chosen(&get, &mut response), (None, None), "{status} {fields:?}");
        }
        for head in [
            "GET / HTTP/1.0\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nCache-Control: no-transform\r\n\r\n",
        ] {
            assert_eq!(chosen(&request(head), &mut response(200, long, &[TEXT])), (None, None));
        }
    }

    #[test]
    fn a_304_has_the_validator_of_the_200() {
        let mut unchanged = response(304, BodyFraming::None, &[("ETag", "\"v1\"")]);
        let vary = Some("Accept-Encoding".to_owned());
        assert_eq!(chosen(&request(GET), &mut unchanged), (None, vary));
        assert_eq!(unchanged.fields.get("etag"), Some(b"W/\"v1\"".as_slice()));
    }

    #[test]
    fn other_responses_are_encoded_and_vary() {
        let (get, coding) = (request(GET), Some(ContentCoding::Brotli));
        let vary = || Some("Accept-Encoding".to_owned());
        for (status, framing) in [
            (200, BodyFraming::Length(100)),
            (200, BodyFraming::Chunked),
            (200, BodyFraming::UntilClose),
            (200, BodyFraming::Stream),
            (404, BodyFraming::Length(100)),
            (500, BodyFraming::Length(100)),
        ] {
            assert_eq!(chosen(&get, &mut response(status, framing, &[TEXT])), (coding, vary()));
        }
        for value in ["*", "Origin, accept-encoding"] {
            let mut varies = response(200, BodyFraming::Chunked, &[TEXT, ("Vary", value)]);
            assert_eq!(chosen(&get, &mut varies), (coding, Some(value.to_owned())));
        }
        let plain = CodingPreference { coding: None, rejects_identity: false };
        let mut response = response(200, BodyFraming::Chunked, &[TEXT]);
        assert_eq!(choose(&settings(), plain, &get, &mut response), None);
        assert!(response.fields.get("vary").is_some());
    }

    #[test]
    fn a_client_that_rejects_identity_gets_short_bodies_encoded() {
        let strict = CodingPreference { rejects_identity: true, ..PREFERENCE };
        for (bytes, coding) in [(1, PREFERENCE.coding), (0, None)] {
            let mut short = response(200, BodyFraming::Length(bytes), &[TEXT]);
            assert_eq!(choose(&settings(), strict, &request(GET), &mut short), coding);
        }
    }

    #[test]
    fn head_of_an_encoded_response_is_that_of_another_representation() {
        let fields = [TEXT, ("ETag", "\"v1\""), ("Accept-Ranges", "bytes")];
        let mut head = response(200, BodyFraming::None, &fields);
        head.length_of_absent_body = Some(100);
        let request = request("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(chosen(&request, &mut head).0, Some(ContentCoding::Brotli));
        describe(ContentCoding::Brotli, &mut head);
        assert_eq!(head.fields.get("etag"), Some(b"W/\"v1\"".as_slice()));
        assert_eq!(head.fields.get("content-encoding"), Some(b"br".as_slice()));
        assert_eq!((head.fields.get("accept-ranges"), head.length_of_absent_body), (None, None));
        let mut weak = response(200, BodyFraming::Chunked, &[TEXT, ("ETag", "W/\"v1\"")]);
        describe(ContentCoding::Gzip, &mut weak);
        assert_eq!(weak.fields.get("etag"), Some(b"W/\"v1\"".as_slice()));
    }
}
